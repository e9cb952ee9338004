package kafka_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"oncewatch/deploy/testenv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
)

// BenchmarkScrapes is what scrapes cost the exporter, in a process of its own,
// at 200 topics × 20 partitions and 1,000 groups on two topics each: two
// scrapers, 500 scrapes in each of the ways Prometheus can ask, while it polls.
// Run it with -benchtime=1x -v.
func BenchmarkScrapes(b *testing.B) {
	oncewatch := testenv.Build(b, ".")
	c := cluster(b, kfake.SeedTopics(20, names(200)...))
	loadTwice(b, c)
	for _, way := range []struct{ name, accept, encoding string }{
		{"gzip", "text/plain;version=0.0.4", "gzip"},
		{"gzip-openmetrics", "application/openmetrics-text;version=1.0.0", "gzip"},
		{"gzip-protobuf", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", "gzip"},
		{"plain", "text/plain;version=0.0.4", "identity"},
		{"plain-openmetrics", "application/openmetrics-text;version=1.0.0", "identity"},
	} {
		b.Run(way.name, func(b *testing.B) {
			address := testenv.FreeAddress(b)
			p := startProgram(b, serve(oncewatch, c.ListenAddrs(), address), address)
			pid := p.Process.Pid
			awaitSeries(b, p, address, 100_000)
			before := residentMB(b, pid)
			scrape := func() (first time.Duration, bytes int64) { return fetchAs(b, p.url, way.accept, way.encoding) }
			scrape()
			for b.Loop() {
				idle := processTime(b, pid)
				time.Sleep(30 * time.Second) // two polls without a scrape
				idle = processTime(b, pid) - idle
				var mu sync.Mutex
				var firsts []time.Duration
				var rss []float64
				var size int64
				began, busy := time.Now(), processTime(b, pid)
				var wg sync.WaitGroup
				for range 2 {
					wg.Go(func() {
						for i := range 250 {
							first, n := scrape()
							mu.Lock()
							firsts, size = append(firsts, first), n
							if i%25 == 24 {
								rss = append(rss, residentMB(b, pid))
							}
							mu.Unlock()
							time.Sleep(80 * time.Millisecond)
						}
					})
				}
				wg.Wait()
				polling := time.Duration(float64(idle) * time.Since(began).Seconds() / 30)
				busy = processTime(b, pid) - busy
				slices.Sort(firsts)
				b.Logf("RSS in MB before the first scrape %.0f, then %.0f; a page %d bytes", before, rss, size)
				b.ReportMetric(float64((busy-polling).Microseconds())/1000/500, "cpu-ms/scrape")
				b.ReportMetric(float64(polling.Microseconds())/1000/time.Since(began).Seconds(), "cpu-ms/s-polling")
				b.ReportMetric(float64(firsts[len(firsts)/2].Microseconds())/1000, "ms-first-byte-median")
				b.ReportMetric(float64(firsts[len(firsts)*99/100].Microseconds())/1000, "ms-first-byte-p99")
				b.ReportMetric(slices.Max(rss), "MB-most")
				b.ReportMetric(float64(fetch(b, p.url)), "series")
			}
		})
	}
	b.Run("slow-readers", func(b *testing.B) {
		address := testenv.FreeAddress(b)
		p := startProgram(b, serve(oncewatch, c.ListenAddrs(), address), address)
		awaitSeries(b, p, address, 100_000)
		// As it stands where both forms are asked for; the pages themselves are
		// not the slow readers' doing.
		for range 20 {
			fetch(b, p.url)
			fetchAs(b, p.url, "text/plain;version=0.0.4", "identity")
		}
		before := residentMB(b, p.Process.Pid)
		for b.Loop() {
			most := before
			var conns []net.Conn
			for i := range 200 {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					b.Fatal(err)
				}
				conns = append(conns, conn)
				encoding := []string{"gzip", "identity"}[i%2]
				if _, err := fmt.Fprintf(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: %s\r\n\r\n", encoding); err != nil {
					b.Fatal(err)
				}
			}
			buf := make([]byte, 1000)
			for range 25 { // 1 kB/s each
				for _, conn := range conns {
					_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
					_, _ = conn.Read(buf)
				}
				most = max(most, residentMB(b, p.Process.Pid))
				time.Sleep(time.Second)
			}
			for _, conn := range conns {
				_ = conn.Close()
			}
			b.ReportMetric(most-before, "MB-more")
			b.ReportMetric(most, "MB-most")
		}
	})
}

// loadTwice fills 200 topics × 20 partitions, and gives 1,000 groups two topics
// each.
func loadTwice(b *testing.B, c *fake) {
	b.Helper()
	load(b, c, names(200), 20, 1000)
	for g := range 1000 {
		var o kadm.Offsets
		for p := range int32(20) {
			o.AddOffset(names(200)[(g+77)%200], p, int64(g%9), -1)
		}
		if resp, err := c.admin.CommitOffsets(context.Background(), fmt.Sprintf("group-%04d", g), o); err != nil || resp.Error() != nil {
			b.Fatal(err, resp.Error())
		}
	}
}

// fetchAs reads a page in one of the ways Prometheus can ask: how long the first
// byte took, and how many there were.
func fetchAs(b *testing.B, url, accept, encoding string) (first time.Duration, bytes int64) {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		b.Error(err)
		return 0, 0
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("Accept-Encoding", encoding)
	began := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Error(err)
		return 0, 0
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = resp.Body.Read(make([]byte, 1))
	first = time.Since(began)
	if bytes, err = io.Copy(io.Discard, resp.Body); err != nil {
		b.Error(err)
	}
	return first, bytes
}

// processTime is the processor time that another process has used.
func processTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skip("no /proc to read processor time from: ", err)
	}
	defer func() { _ = f.Close() }()
	line, _ := bufio.NewReader(f).ReadString('\n')
	_, line, _ = strings.Cut(line, ") ")
	fields := strings.Fields(line)
	var user, system int64
	if _, err := fmt.Sscan(fields[11], &user); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(fields[12], &system); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond // ticks of USER_HZ
}
