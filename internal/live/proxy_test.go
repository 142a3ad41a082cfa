package live

import (
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// proxy stands before the database and can fail like a network.
type proxy struct {
	url    string
	target string
	in     net.Listener
	work   sync.WaitGroup

	mu    sync.Mutex
	shut  bool
	conns map[net.Conn]*bool // open connections; true: nothing gets through
}

func newProxy(t testing.TB, databaseURL string) *proxy {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{conns: make(map[net.Conn]*bool)}
	if p.in, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	_, p.target = pgconn.NetworkAddress(cfg.ConnConfig.Host, cfg.ConnConfig.Port)
	u.Host = p.in.Addr().String()
	p.url = u.String()
	p.work.Go(p.accept)
	t.Cleanup(func() {
		p.in.Close()
		p.cut()
		p.work.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		client, err := p.in.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		if p.shut {
			client.Close()
			server.Close()
			p.mu.Unlock()
			continue
		}
		frozen := new(bool)
		p.conns[client], p.conns[server] = frozen, frozen
		p.mu.Unlock()
		p.work.Go(func() { p.pass(client, server, frozen) })
		p.work.Go(func() { p.pass(server, client, frozen) })
	}
}

func (p *proxy) pass(from, to net.Conn, frozen *bool) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		silent := *frozen
		p.mu.Unlock()
		if silent && err == nil {
			continue // swallowed
		}
		if _, werr := to.Write(buffer[:n]); err != nil || werr != nil {
			return
		}
	}
}

// cut closes all connections and takes no more until heal.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = true
	for conn := range p.conns {
		conn.Close()
	}
	clear(p.conns)
}

// refuse takes no more connections until heal.
func (p *proxy) refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = true
}

func (p *proxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = false
}

// freeze lets nothing more through on the connections that are open, without closing them.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, frozen := range p.conns {
		*frozen = true
	}
}
