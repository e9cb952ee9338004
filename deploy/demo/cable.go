package demo

import (
	"context"
	"errors"
	"net"
	"sync"
)

// cable is the connections of one program, to be cut all at once: what a
// process killed by SIGKILL, or a network that went away, leaves behind.
type cable struct {
	mu    sync.Mutex
	ended bool
	conns map[net.Conn]struct{}
}

func newCable() *cable { return &cable{conns: map[net.Conn]struct{}{}} }

var errCut = errors.New("the connection was cut")

// take adds a connection; one taken after the cut is closed at once.
func (c *cable) take(conn net.Conn) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		_ = conn.Close()
	} else {
		c.conns[conn] = struct{}{}
	}
	return &cabled{conn, c}
}

func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for conn := range c.conns {
		_ = conn.Close()
	}
	clear(c.conns)
}

func (c *cable) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = false
}

func (c *cable) isCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// dial is the dialer of a program behind the cable.
func (c *cable) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if c.isCut() {
		return nil, errCut
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return c.take(conn), nil
}

// cabled is a connection that leaves its cable when it is closed.
type cabled struct {
	net.Conn
	c *cable
}

func (c *cabled) Close() error {
	c.c.mu.Lock()
	delete(c.c.conns, c.Conn)
	c.c.mu.Unlock()
	return c.Conn.Close()
}

// gate is a listener behind a cable: a server that can be taken off the
// network and put back, with its data.
type gate struct {
	net.Listener
	c *cable
}

func (g gate) Accept() (net.Conn, error) {
	conn, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return g.c.take(conn), nil
}
