# The production binary on Alpine, with nothing beside it but certificates.

FROM golang:1.26.8 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o /openslot ./cmd/openslot

# wget (of busybox) for the health check, certificates for the identity provider's keys.
FROM alpine:3.22.1
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /openslot /usr/local/bin/openslot
# nobody: a number, so that Kubernetes can see that it is not root.
USER 65534:65534
EXPOSE 8080
ENTRYPOINT ["openslot"]
CMD ["api"]
