package devenv

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// A machine without PostgreSQL, and a repository on this machine.
func TestFetch(t *testing.T) {
	acc, err := serverAccount()
	must(t, err)
	installed, _, ok := search{account: acc, folders: usualFolders, log: t.Logf}.installed(t.Context())
	if !ok {
		t.Fatal("the archive is made of an installed PostgreSQL, and there is none")
	}
	// Programs that hand over to the installed ones.
	files := map[string]string{"share/postgresql/extension/btree_gist.control": ""}
	for _, name := range []string{"postgres", "initdb", "pg_ctl"} {
		files["bin/"+name] = fmt.Sprintf("#!/bin/sh\nexec '%s' \"$@\"\n", installed.path(name))
	}
	withoutGist := map[string]string{"bin/postgres": files["bin/postgres"], "bin/initdb": files["bin/initdb"], "bin/pg_ctl": files["bin/pg_ctl"]}

	tests := []struct {
		name  string
		serve func(w http.ResponseWriter, path string)
		want  string // in the error; "" starts
	}{
		{"Starts", serveJar(t, files), ""},
		{"NoGist", serveJar(t, withoutGist), "btree_gist is missing"},
		{"NotThere", func(w http.ResponseWriter, _ string) { w.WriteHeader(http.StatusNotFound) }, repositoryVariable},
		{"Damaged", func(w http.ResponseWriter, path string) {
			if strings.HasSuffix(path, ".sha256") {
				fmt.Fprint(w, strings.Repeat("0", 64))
				return
			}
			serveJar(t, files)(w, path)
		}, "checksums do not match"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var requests atomic.Int32
			repository := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				if !strings.Contains(r.URL.Path, string(fetchedVersions[fetchedMajor])) {
					t.Errorf("asked for %s", r.URL.Path)
				}
				tt.serve(w, r.URL.Path)
			}))
			defer repository.Close()
			useCache(t)
			t.Setenv("PATH", "/nonexistent")
			t.Setenv(repositoryVariable, repository.URL)
			temporary := filepath.Dir(serverFolder(t))
			t.Setenv("TMPDIR", temporary)
			foreign := filepath.Join(temporary, "embedded_postgres_log1") // of another program
			must(t, os.WriteFile(foreign, nil, 0o600))
			defer func() {
				if logs, err := filepath.Glob(filepath.Join(temporary, "embedded_postgres_log*")); err != nil || len(logs) != 1 || logs[0] != foreign {
					t.Errorf("left in the folder for temporary files: %q, %v; want %q alone", logs, err, foreign)
				}
			}()
			opts := PostgresOptions{Own: true, Log: t.Logf, folders: []string{}}

			p, err := Start(t.Context(), opts)
			if tt.want != "" {
				if err == nil {
					must(t, p.Stop())
					t.Fatal("started")
				}
				if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "apt-get install") {
					t.Errorf("error %q does not say %q and what to do", err, tt.want)
				}
				return
			}
			must(t, err)
			must(t, ping(t.Context(), p.URL("")))
			if p.binaries.dir == installed.dir {
				t.Error("that is the installed server")
			}
			must(t, p.Stop())
			before := requests.Load()
			again := NewServer(t, opts)
			must(t, again.Stop())
			if requests.Load() != before {
				t.Error("the second start fetched again")
			}
		})
	}
}

// useCache gives the test a cache of its own.
func useCache(t *testing.T) {
	t.Helper()
	dir := serverFolder(t)
	must(t, os.MkdirAll(dir, 0o755))
	t.Setenv("XDG_CACHE_HOME", dir)
	t.Setenv("HOME", dir)
	old := rootCache
	rootCache = dir
	t.Cleanup(func() { rootCache = old })
}

// serveJar serves files the way the repository does: a zip that holds a .txz,
// and its checksum.
func serveJar(t *testing.T, files map[string]string) func(http.ResponseWriter, string) {
	t.Helper()
	var archive bytes.Buffer
	tw := tar.NewWriter(&archive)
	for name, text := range files {
		must(t, tw.WriteHeader(&tar.Header{Name: filepath.ToSlash(name), Mode: 0o700, Size: int64(len(text)), Typeflag: tar.TypeReg}))
		_, err := tw.Write([]byte(text))
		must(t, err)
	}
	must(t, tw.Close())
	var jar bytes.Buffer
	zw := zip.NewWriter(&jar)
	entry, err := zw.Create("postgres-linux.txz")
	must(t, err)
	_, err = entry.Write(storeXZ(archive.Bytes()))
	must(t, err)
	must(t, zw.Close())
	sum := sha256.Sum256(jar.Bytes())
	return func(w http.ResponseWriter, path string) {
		if strings.HasSuffix(path, ".sha256") {
			fmt.Fprint(w, hex.EncodeToString(sum[:]))
			return
		}
		_, _ = w.Write(jar.Bytes()) // a client that left sees for itself
	}
}

// storeXZ packs data into the xz format without compressing it: no library of
// ours writes xz, and the machine may lack the program.
func storeXZ(data []byte) []byte {
	sum := func(b []byte) []byte { return binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(b)) }
	pad := func(b []byte) []byte { return append(b, make([]byte, (4-len(b)%4)%4)...) }
	flags := []byte{0, 1} // check: CRC32

	header := []byte{2, 0, 0x21, 1, 8, 0, 0, 0} // 12 bytes with its sum; LZMA2, 64 KiB
	block := append(header, sum(header)...)
	control := byte(1) // a stored chunk that resets the dictionary; 2 for the others
	for rest := data; len(rest) > 0; control = 2 {
		n := min(len(rest), 1<<16)
		block = append(block, control, byte((n-1)>>8), byte(n-1))
		block = append(block, rest[:n]...)
		rest = rest[n:]
	}
	block = append(block, 0)
	unpadded := len(block) + 4
	block = append(pad(block), sum(data)...)

	index := []byte{0, 1}
	index = binary.AppendUvarint(index, uint64(unpadded))
	index = pad(binary.AppendUvarint(index, uint64(len(data))))
	index = append(index, sum(index)...)

	out := append([]byte{0xFD, '7', 'z', 'X', 'Z', 0}, flags...)
	out = append(out, sum(flags)...)
	out = append(out, block...)
	out = append(out, index...)
	footer := append(binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4-1)), flags...)
	out = append(out, sum(footer)...)
	out = append(out, footer...)
	return append(out, 'Y', 'Z')
}
