package kafka_test

import (
	"flag"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"oncewatch/deploy/testenv"
)

var peers = flag.String("peers", "", "binaries of kminion and kafka_exporter, for BenchmarkPeers: PATH,PATH")

// BenchmarkPeers is oncewatch beside other exporters, each in a process of its
// own before the same brokers (200 topics × 20 partitions, 1,000 groups on two
// topics each), scraped 100 times, 300 ms apart, or as often as three minutes
// allow. Run it with -benchtime=1x.
func BenchmarkPeers(b *testing.B) {
	c := cluster(b, kfake.SeedTopics(20, names(200)...))
	loadTwice(b, c)
	count := c.counting()
	brokers := c.ListenAddrs()
	programs := map[string]func(address string) *exec.Cmd{
		"oncewatch": func(address string) *exec.Cmd { return serve(testenv.Build(b, "."), brokers, address) },
	}
	for path := range strings.SplitSeq(*peers, ",") {
		switch name := strings.TrimSuffix(filepath.Base(path), ".bin"); name {
		case "kminion":
			programs[name] = func(address string) *exec.Cmd {
				host, port, _ := net.SplitHostPort(address)
				cmd := exec.Command(path)
				cmd.Env = append(cmd.Environ(), "KAFKA_BROKERS="+strings.Join(brokers, ","), "EXPORTER_HOST="+host, "EXPORTER_PORT="+port, "LOGGER_LEVEL=error")
				return cmd
			}
		case "kafka_exporter":
			programs[name] = func(address string) *exec.Cmd {
				args := []string{"--web.listen-address=" + address}
				for _, broker := range brokers {
					args = append(args, "--kafka.server="+broker)
				}
				return exec.Command(path, args...)
			}
		}
	}
	for name, program := range programs {
		b.Run(name, func(b *testing.B) {
			address := testenv.FreeAddress(b)
			p := startProgram(b, program(address), address)
			awaitSeries(b, p, address, 4000)
			for b.Loop() {
				count.take()
				began, before := time.Now(), processTime(b, p.Process.Pid)
				var took []time.Duration
				series := 0
				for len(took) < 100 && time.Since(began) < 3*time.Minute {
					at := time.Now()
					series = fetch(b, p.url)
					took = append(took, time.Since(at))
					time.Sleep(300 * time.Millisecond)
				}
				slices.Sort(took)
				_, requests := count.take()
				b.ReportMetric(float64((processTime(b, p.Process.Pid)-before).Milliseconds())/float64(len(took)), "cpu-ms/scrape")
				b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-median-scrape")
				b.ReportMetric(residentMB(b, p.Process.Pid), "MB-after")
				b.ReportMetric(float64(len(took)), "scrapes")
				b.ReportMetric(float64(requests)/time.Since(began).Minutes(), "requests/min")
				b.ReportMetric(float64(series), "series")
			}
		})
	}
}

// serve is the exporter before these brokers, without a database.
func serve(oncewatch string, brokers []string, address string) *exec.Cmd {
	return exec.Command(oncewatch, "serve", "--kafka.brokers="+strings.Join(brokers, ","), "--postgres.dsn=postgres://127.0.0.1:1/none",
		"--web.listen-address="+address, "--web.enable-pprof", "--poll.interval=15s", "--poll.timeout=10s", "--log.level=error")
}
