package dbconn

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// A server that reports settings without end, before anything was asked, is
// refused and costs next to nothing.
func TestSettingsWithoutEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		b := pgproto3.NewBackend(c, c)
		if _, err := b.ReceiveStartupMessage(); err != nil {
			return
		}
		b.Send(&pgproto3.AuthenticationOk{})
		for i := 0; b.Flush() == nil; i++ {
			b.Send(&pgproto3.ParameterStatus{Name: fmt.Sprint("setting", i), Value: strings.Repeat("x", 1000)})
		}
	}()
	pc, err := To("postgres://u@" + l.Addr().String() + "/d?sslmode=disable").Pool()
	if err != nil {
		t.Fatal(err)
	}
	pc.ConnConfig.BuildFrontend = Bounded(1 << 20)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = pgx.ConnectConfig(ctx, pc.ConnConfig)
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "settings without end") {
		t.Errorf("error: %v", err)
	}
	_ = l.Close()
	<-ended
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 8<<20 { // client and server together
		t.Errorf("allocated %d kB", allocated>>10)
	}
}

// Messages are told apart wherever the network cuts them.
func TestSettingsAreCountedAcrossReads(t *testing.T) {
	var stream []byte
	for i := range 100 {
		stream, _ = (&pgproto3.ParameterStatus{Name: "a", Value: strings.Repeat("x", i)}).Encode(stream)
		stream, _ = (&pgproto3.DataRow{Values: [][]byte{bytes.Repeat([]byte("S"), 3*i)}}).Encode(stream)
		stream, _ = (&pgproto3.NoData{}).Encode(stream)
	}
	want := 0
	for i := range 100 {
		want += len("a\x00\x00") + i + 1
	}
	for name, r := range map[string]io.Reader{"whole": bytes.NewReader(stream), "bytes": iotest.OneByteReader(bytes.NewReader(stream)), "halves": iotest.HalfReader(bytes.NewReader(stream))} {
		s := &settingsReader{r: r}
		if n, err := io.Copy(io.Discard, s); err != nil || int(n) != len(stream) || s.settings != want {
			t.Errorf("%s: %d bytes of settings, %v; want %d", name, s.settings, err, want)
		}
	}
}
