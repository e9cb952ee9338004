package kafka_test

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"oncewatch/deploy/testenv"
)

// scrape fetches a page as Prometheus does and counts its samples.
func fetch(t testing.TB, url string) (samples int) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body := io.Reader(resp.Body)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if body, err = gzip.NewReader(resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		if line := lines.Text(); line != "" && line[0] != '#' {
			samples++
		}
	}
	if err := lines.Err(); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	return samples
}

// BenchmarkPoll is the time of a poll at 100 and 1,000 groups, its requests
// included.
func BenchmarkPoll(b *testing.B) {
	for _, groups := range []int{100, 1000} {
		b.Run(fmt.Sprintf("groups=%d", groups), func(b *testing.B) {
			c := cluster(b, kfake.SeedTopics(20, names(50)...))
			load(b, c, names(50), 20, groups)
			w := watch(b, c.ListenAddrs())
			w.mustPoll()
			count := c.counting()
			sum := 0
			for b.Loop() {
				w.next()
				_, n := count.take()
				sum += n
			}
			b.ReportMetric(float64(sum)/float64(b.N), "requests/poll")
		})
	}
}

// BenchmarkTenThousand is the exporter itself before 10,000 topics and 10,000
// groups: all of them, and with the default bound on groups. Run it with
// -benchtime=1x.
func BenchmarkTenThousand(b *testing.B) {
	const n = 10_000
	oncewatch := testenv.Build(b, ".")
	c := cluster(b, kfake.SeedTopics(1, names(n)...))
	load(b, c, names(n), 1, n)
	count := c.counting()
	for _, groups := range []int{n, 1000} {
		b.Run(fmt.Sprintf("max-groups=%d", groups), func(b *testing.B) {
			address := testenv.FreeAddress(b)
			p := startProgram(b, exec.Command(oncewatch, "serve", "--kafka.brokers="+strings.Join(c.ListenAddrs(), ","), fmt.Sprint("--kafka.max-groups=", groups),
				"--postgres.dsn=postgres://127.0.0.1:1/none", "--web.listen-address="+address, "--poll.interval=5s", "--poll.timeout=5s", "--log.level=error"), address)
			awaitSeries(b, p, address, 3*groups)
			var took []time.Duration
			samples := 0
			for b.Loop() {
				time.Sleep(10 * time.Second) // two polls after the first
				count.take()
				time.Sleep(15 * time.Second)
				_, requests := count.take()
				b.ReportMetric(float64(requests)/3, "requests/poll")
				for range 20 {
					begin := time.Now()
					samples = fetch(b, p.url)
					took = append(took, time.Since(begin))
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(samples), "series")
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-median-scrape")
			b.ReportMetric(residentMB(b, p.Process.Pid), "MB")
			b.ReportMetric(value(b, p.url, `oncewatch_collector_duration_seconds{collector="groups"} `)*1000, "ms-groups-poll")
			b.ReportMetric(value(b, p.url, `oncewatch_collector_duration_seconds{collector="topics"} `)*1000, "ms-topics-poll")
		})
	}
}

// program is a process under measurement.
type program struct {
	*exec.Cmd
	url string
}

func startProgram(t testing.TB, cmd *exec.Cmd, address string) program {
	t.Helper()
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	return program{cmd, "http://" + address + "/metrics"}
}

// awaitSeries waits until a program serves so many series.
func awaitSeries(t testing.TB, p program, address string, least int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if conn, err := net.Dial("tcp", address); err == nil {
			_ = conn.Close()
			if fetch(t, p.url) >= least {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("not %d series within a minute", least)
		}
	}
}

// value is that of a series on a page.
func value(t testing.TB, url, series string) (v float64) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), series); ok {
			if _, err := fmt.Sscan(rest, &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no %s", series)
	return 0
}

func residentMB(t testing.TB, pid int) float64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("no /proc to read the memory from: ", err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			var kb float64
			if _, err := fmt.Sscan(rest, &kb); err == nil {
				return kb / 1024
			}
		}
	}
	t.Fatal("/proc does not tell VmRSS")
	return 0
}
