package kafka_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/collectors/kafka"
	"oncewatch/deploy/testenv"
)

// plain is the collector that one writes first: it asks the cluster at every
// scrape, by kadm's own calls. It has less than oncewatch has: no age of
// records.
type plain struct{ admin *kadm.Client }

var (
	plainLag   = prometheus.NewDesc("plain_lag", "Lag.", []string{"group", "topic", "partition"}, nil)
	plainStart = prometheus.NewDesc("plain_start", "Log start.", []string{"topic", "partition"}, nil)
	plainEnd   = prometheus.NewDesc("plain_end", "Log end.", []string{"topic", "partition"}, nil)
	plainKeep  = prometheus.NewDesc("plain_retention", "Retention.", []string{"topic"}, nil)
	plainState = prometheus.NewDesc("plain_members", "Members.", []string{"group", "state"}, nil)
)

func (p plain) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{plainLag, plainStart, plainEnd, plainKeep, plainState} {
		ch <- d
	}
}

func (p plain) Collect(ch chan<- prometheus.Metric) {
	ctx := context.Background()
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	lags, err := p.admin.Lag(ctx)
	if err != nil {
		panic(err)
	}
	topics := map[string]bool{}
	lags.Each(func(g kadm.DescribedGroupLag) {
		send(plainState, float64(len(g.Members)), g.Group, g.State)
		for topic, partitions := range g.Lag {
			topics[topic] = true
			for id, l := range partitions {
				send(plainLag, float64(l.Lag), g.Group, topic, strconv.Itoa(int(id)))
			}
		}
	})
	var names []string
	for topic := range topics {
		names = append(names, topic)
	}
	starts, err := p.admin.ListStartOffsets(ctx, names...)
	if err != nil {
		panic(err)
	}
	ends, err := p.admin.ListEndOffsets(ctx, names...)
	if err != nil {
		panic(err)
	}
	for _, one := range []struct {
		desc *prometheus.Desc
		at   kadm.ListedOffsets
	}{{plainStart, starts}, {plainEnd, ends}} {
		one.at.Each(func(o kadm.ListedOffset) {
			send(one.desc, float64(o.Offset), o.Topic, strconv.Itoa(int(o.Partition)))
		})
	}
	configs, err := p.admin.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		panic(err)
	}
	for _, c := range configs {
		for _, kv := range c.Configs {
			if kv.Key == "retention.ms" {
				ms, _ := strconv.ParseFloat(kv.MaybeValue(), 64)
				send(plainKeep, ms/1000, c.Name)
			}
		}
	}
}

// plainEnv makes the test binary the plain collector: ADDRESS BROKERS.
const plainEnv = "ONCEWATCH_TEST_PLAIN"

func servePlain(of string) {
	address, brokers, _ := strings.Cut(of, " ")
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...))
	if err != nil {
		panic(err)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(plain{kadm.NewClient(client)})
	panic(http.ListenAndServe(address, promhttp.HandlerFor(reg, promhttp.HandlerOpts{})))
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

// cpu is the processor time it has used.
func (p program) cpu(t testing.TB) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
	if err != nil {
		t.Skip("no /proc to read the processor time from: ", err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100
}

// BenchmarkAgainstPlainCollector compares the exporter with a plain collector
// in one run: 1,000 groups, 200 topics × 20 partitions, 3 brokers, one scrape
// for each poll. Run it with -benchtime=1x.
func BenchmarkAgainstPlainCollector(b *testing.B) {
	oncewatch := buildOncewatch(b)
	c := cluster(b, kfake.SeedTopics(20, names(200)...))
	load(b, c, names(200), 20, 1000)
	count := c.counting()
	brokers := strings.Join(c.ListenAddrs(), ",")
	const scrapes, every = 10, 5 * time.Second

	type figures struct{ requests, cpu, rss, scrape, series float64 }
	measure := func(p program) (f figures) {
		for deadline := time.Now().Add(time.Minute); f.series < 1000; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(deadline) {
				b.Fatal("no series")
			}
			if conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(p.url, "http://"), "/metrics")); err == nil {
				_ = conn.Close()
				f.series = float64(fetch(b, p.url))
			}
		}
		count.take()
		before := p.cpu(b)
		var took []time.Duration
		for range scrapes {
			begin := time.Now()
			f.series = float64(fetch(b, p.url))
			took = append(took, time.Since(begin))
			f.rss = max(f.rss, residentMB(b, p.Process.Pid))
			time.Sleep(max(0, every-time.Since(begin)))
		}
		slices.Sort(took)
		_, n := count.take()
		f.requests = float64(n) / scrapes
		f.cpu = float64((p.cpu(b) - before).Milliseconds()) / scrapes
		f.scrape = float64(took[len(took)/2].Microseconds()) / 1000
		return f
	}
	for b.Loop() {
		report := map[string]figures{}
		for _, granularity := range []string{kafka.ByPartition, kafka.ByTopic} {
			address := testenv.FreeAddress(b)
			p := startProgram(b, exec.Command(oncewatch, "serve", "--kafka.brokers="+brokers, "--kafka.granularity="+granularity,
				"--postgres.dsn=postgres://127.0.0.1:1/none", "--web.listen-address="+address, "--poll.interval="+every.String(), "--poll.timeout="+every.String(), "--log.level=error"), address)
			report[granularity] = measure(p)
			_ = p.Process.Signal(syscall.SIGTERM)
			_ = p.Wait()
		}
		address := testenv.FreeAddress(b)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), plainEnv+"="+address+" "+brokers)
		p := startProgram(b, cmd, address)
		report["plain"] = measure(p)
		for _, name := range []string{"plain", kafka.ByPartition, kafka.ByTopic} {
			f := report[name]
			b.Logf("%-9s %6.0f series  %5.1f requests  %5.0f ms processor time  %4.0f MB  %7.1f ms a scrape", name, f.series, f.requests, f.cpu, f.rss, f.scrape)
		}
		one, other := report["plain"], report[kafka.ByPartition]
		b.ReportMetric(one.requests/other.requests, "×requests")
		b.ReportMetric(one.cpu/other.cpu, "×cpu")
		b.ReportMetric(one.rss/other.rss, "×rss")
		b.ReportMetric(one.scrape/other.scrape, "×scrape")
	}
}
