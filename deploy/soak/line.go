// Package soak runs the exporter for long, against sources that come and go.
package soak

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
)

// mode is what a line does with what a server answers.
type mode int32

const (
	whole   mode = iota
	cut          // connections are closed, new ones too
	garbled      // answers of the same length, of random bytes
	silent       // no answer, no end
)

var errCut = errors.New("the line is cut")

// line is the network between a server and its clients.
type line struct {
	mode  atomic.Int32
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func newLine() *line { return &line{conns: map[net.Conn]struct{}{}} }

// set changes what the line does. A line that is mended drops what it has
// spoilt.
func (l *line) set(m mode) {
	l.mode.Store(int32(m))
	if m != whole && m != cut {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.Close()
	}
	clear(l.conns)
}

// listener puts the line in front of a server in this process.
func (l *line) listener(in net.Listener) net.Listener { return &spoilt{in, l} }

type spoilt struct {
	net.Listener
	l *line
}

func (s *spoilt) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if mode(s.l.mode.Load()) == cut {
		_ = c.Close()
	} else {
		s.l.conns[c] = struct{}{}
	}
	return &end{c, s.l}, nil
}

// end is the server's end of a connection.
type end struct {
	net.Conn
	l *line
}

func (e *end) Write(p []byte) (int, error) {
	switch mode(e.l.mode.Load()) {
	case cut:
		return 0, errCut
	case silent:
		return len(p), nil
	case garbled:
		noise := make([]byte, len(p))
		for i := range noise {
			noise[i] = byte(rand.Uint32())
		}
		_, err := e.Conn.Write(noise)
		return len(p), err
	}
	return e.Conn.Write(p)
}

func (e *end) Close() error {
	e.l.mu.Lock()
	delete(e.l.conns, e.Conn)
	e.l.mu.Unlock()
	return e.Conn.Close()
}

// forward carries connections of the listener to a server elsewhere, until the
// listener is closed.
func forward(in net.Listener, to string) {
	for {
		client, err := in.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", to)
		if err != nil {
			_ = client.Close()
			continue
		}
		var once sync.Once
		hangUp := func() { once.Do(func() { _ = client.Close(); _ = server.Close() }) }
		go func() { _, _ = io.Copy(server, client); hangUp() }()
		go func() { _, _ = io.Copy(writer{client}, server); hangUp() }()
	}
}

// writer hides ReadFrom, which would pass the line by.
type writer struct{ io.Writer }
