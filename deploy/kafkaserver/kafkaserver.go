// Package kafkaserver runs a throw-away Apache Kafka cluster in KRaft mode on
// loopback, for tests: the real broker where its behaviour matters. It needs
// Java 17 or newer, and Maven once, which resolves the broker into a cache.
package kafkaserver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Options of a cluster. The zero value is one broker, which is its own
// controller, in a temporary folder on free ports.
type Options struct {
	// Config is added to server.properties of every node.
	Config map[string]string
	// Brokers is how many there are; the first is the controller too. 0 means 1.
	Brokers int
	// Protocol of the listener for clients: PLAINTEXT (the default), SSL,
	// SASL_PLAINTEXT or SASL_SSL. What it needs goes into Config.
	Protocol string
	// Version of Apache Kafka, 3.0 or newer; "" means Version.
	Version string
	// Tiered keeps what topics with remote.storage.enable move to the remote
	// tier in a folder.
	Tiered bool
}

// Server is a cluster.
type Server struct {
	// Dir is removed by Close: configuration, logs and data.
	Dir string

	java      string
	classpath string
	nodes     []*node
}

type node struct {
	id       int
	dir      string
	client   string // HOST:PORT by the protocol of Options
	internal string // HOST:PORT in plain text
	process  *process
}

// Start makes and starts a cluster.
func Start(ctx context.Context, o Options) (*Server, error) {
	with := none
	if o.Tiered {
		with = tiered
	}
	java, classpath, err := find(ctx, cmp.Or(o.Version, Version), with)
	if err != nil {
		return nil, err
	}
	// A free port can be taken by another process before the broker binds it.
	for attempt := 1; ; attempt++ {
		s, err := start(ctx, java, classpath, o)
		if err == nil || attempt == 3 || !errors.Is(err, errPortTaken) {
			return s, err
		}
	}
}

func start(ctx context.Context, java, classpath string, o Options) (_ *Server, err error) {
	dir, err := os.MkdirTemp("", "oncewatch-kafka-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for Kafka: %w", err)
	}
	s := &Server{Dir: dir, java: java, classpath: classpath}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := s.configure(o); err != nil {
		return nil, err
	}
	if err := s.StartAgain(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// configure lays out and formats the folder of every node.
func (s *Server) configure(o Options) error {
	n := max(o.Brokers, 1)
	ports, err := freePorts(2*n + 1)
	if err != nil {
		return err
	}
	address := func(i int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[i])) }
	controller := address(2 * n)
	for i := range n {
		nd := &node{id: i + 1, dir: filepath.Join(s.Dir, fmt.Sprintf("node-%d", i+1)), client: address(2 * i), internal: address(2*i + 1)}
		s.nodes = append(s.nodes, nd)
		if err := os.Mkdir(nd.dir, 0o755); err != nil {
			return fmt.Errorf("make a folder for Kafka: %w", err)
		}
		roles, listeners := "broker", []string{"CLIENT://" + nd.client, "INTERNAL://" + nd.internal}
		advertised := strings.Join(listeners, ",")
		if i == 0 {
			roles, listeners = "broker,controller", append(listeners, "CONTROLLER://"+controller)
		}
		protocol := o.Protocol
		if protocol == "" {
			protocol = "PLAINTEXT"
		}
		conf := map[string]string{
			"process.roles":                                    roles,
			"node.id":                                          strconv.Itoa(nd.id),
			"controller.quorum.voters":                         "1@" + controller,
			"controller.listener.names":                        "CONTROLLER",
			"inter.broker.listener.name":                       "INTERNAL",
			"listeners":                                        strings.Join(listeners, ","),
			"advertised.listeners":                             advertised,
			"listener.security.protocol.map":                   "CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT,CLIENT:" + protocol,
			"log.dirs":                                         filepath.Join(nd.dir, "data"),
			"log.index.size.max.bytes":                         "1048576",
			"log.cleaner.dedupe.buffer.size":                   "2097152",
			"offsets.topic.num.partitions":                     "4",
			"offsets.topic.replication.factor":                 "1",
			"transaction.state.log.num.partitions":             "1",
			"transaction.state.log.replication.factor":         "1",
			"transaction.state.log.min.isr":                    "1",
			"share.coordinator.state.topic.num.partitions":     "1",
			"share.coordinator.state.topic.replication.factor": "1",
			"share.coordinator.state.topic.min.isr":            "1",
			"group.initial.rebalance.delay.ms":                 "100",
			// How long a killed broker keeps its successor waiting.
			"broker.session.timeout.ms":    "6000",
			"broker.heartbeat.interval.ms": "500",
		}
		if o.Tiered {
			maps.Copy(conf, map[string]string{
				"remote.log.storage.system.enable":                         "true",
				"remote.log.storage.manager.class.name":                    "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
				"rsm.config.dir":                                           filepath.Join(s.Dir, "remote"),
				"remote.log.metadata.manager.listener.name":                "INTERNAL",
				"rlmm.config.remote.log.metadata.topic.replication.factor": "1",
				"rlmm.config.remote.log.metadata.topic.num.partitions":     "1",
				"remote.log.manager.task.interval.ms":                      "500",
				"remote.log.metadata.manager.impl.prefix":                  "rlmm.config.",
				"remote.log.storage.manager.impl.prefix":                   "rsm.config.",
			})
		}
		maps.Copy(conf, o.Config)
		var b strings.Builder
		for _, k := range slices.Sorted(maps.Keys(conf)) {
			fmt.Fprintf(&b, "%s=%s\n", k, strings.ReplaceAll(conf[k], `\`, `\\`))
		}
		for file, text := range map[string]string{"server.properties": b.String(), "log4j2.properties": quietLog} {
			if err := os.WriteFile(filepath.Join(nd.dir, file), []byte(text), 0o644); err != nil {
				return fmt.Errorf("configure Kafka: %w", err)
			}
		}
	}
	return nil
}

// quietLog keeps what explains a broker that does not start.
const quietLog = `rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
`

// clusterID is any UUID in Kafka's form: the cluster has no neighbours.
const clusterID = "b25jZXdhdGNoLXRlc3RzMA"

func (s *Server) format(ctx context.Context, nd *node) error {
	cmd := exec.CommandContext(ctx, s.java, append(s.jvm(nd), "kafka.tools.StorageTool", "format",
		"--cluster-id", clusterID, "--config", filepath.Join(nd.dir, "server.properties"))...)
	cmd.Dir = nd.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("format Kafka's storage: %w: %s", err, lastLines(out, 5))
	}
	return nil
}

func (s *Server) jvm(nd *node) []string {
	return []string{
		// Starting quickly beats running quickly here.
		"-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
		"-Djava.awt.headless=true",
		"-Dlog4j2.configurationFile=" + filepath.Join(nd.dir, "log4j2.properties"),
		"-cp", s.classpath,
	}
}

// StartAgain starts the cluster after Stop or Kill, on the same ports and with
// the same data, and waits until every broker has joined.
func (s *Server) StartAgain(ctx context.Context) error {
	for _, nd := range s.nodes {
		if _, err := os.Stat(filepath.Join(nd.dir, "data", "meta.properties")); err != nil {
			if err := s.format(ctx, nd); err != nil {
				return err
			}
		}
		p, err := launch(s.java, append(s.jvm(nd), "kafka.Kafka", filepath.Join(nd.dir, "server.properties")), nd.dir)
		if err != nil {
			return fmt.Errorf("start Kafka: %w", err)
		}
		nd.process = p
	}
	return s.ready(ctx)
}

var errPortTaken = errors.New("a port was taken")

// ready waits until each broker knows all of them and a controller.
func (s *Server) ready(ctx context.Context) error {
	var clients []*kgo.Client // one for each: a broker may be known before it listens
	for _, address := range s.Internal() {
		client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.RequestRetries(0))
		if err != nil {
			return err
		}
		defer client.Close()
		clients = append(clients, client)
	}
	for {
		var err error
		for len(clients) > 0 && err == nil {
			if err = s.whole(ctx, clients[0]); err == nil {
				clients = clients[1:]
			}
		}
		if err == nil {
			return nil
		}
		for _, nd := range s.nodes {
			select {
			case <-nd.process.done:
				log, _ := os.ReadFile(nd.process.log)
				if bytes.Contains(log, []byte("BindException")) || bytes.Contains(log, []byte("Address already in use")) {
					return fmt.Errorf("start Kafka: %w", errPortTaken)
				}
				return fmt.Errorf("start Kafka: broker %d ended: %s", nd.id, lastLines(log, 8))
			default:
			}
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(s.nodes[0].process.log)
			return fmt.Errorf("start Kafka: not every broker joined: %w: %s", errors.Join(ctx.Err(), err), lastLines(log, 8))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// whole asks one broker whether it knows all of them and a controller.
func (s *Server) whole(ctx context.Context, client *kgo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none, where nil is all
	resp, err := client.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return err
	}
	if meta := resp.(*kmsg.MetadataResponse); len(meta.Brokers) != len(s.nodes) || meta.ControllerID < 0 {
		return fmt.Errorf("it knows %d brokers of %d, controller %d", len(meta.Brokers), len(s.nodes), meta.ControllerID)
	}
	return nil
}

// Brokers are the addresses for clients, by Options.Protocol.
func (s *Server) Brokers() []string {
	var out []string
	for _, nd := range s.nodes {
		out = append(out, nd.client)
	}
	return out
}

// Internal are the brokers' plain text addresses, whatever Options.Protocol
// is: for making users and access rules (as User:ANONYMOUS).
func (s *Server) Internal() []string {
	var out []string
	for _, nd := range s.nodes {
		out = append(out, nd.internal)
	}
	return out
}

// LogFile is the log of the first broker.
func (s *Server) LogFile() string { return filepath.Join(s.nodes[0].dir, "log") }

// Stop stops every broker in order and keeps the data.
func (s *Server) Stop(ctx context.Context) error { return s.end(ctx, os.Interrupt) }

// Kill ends every broker with SIGKILL, as a crash would, and keeps the data.
func (s *Server) Kill() error { return s.end(context.Background(), os.Kill) }

// KillBroker ends broker i (from 0) with SIGKILL.
func (s *Server) KillBroker(i int) error { return s.nodes[i].end(context.Background(), os.Kill) }

func (s *Server) end(ctx context.Context, sig os.Signal) error {
	// The controller, which is the first, last: the others say goodbye to it.
	var errs []error
	for _, nd := range slices.Backward(s.nodes) {
		errs = append(errs, nd.end(ctx, sig))
	}
	return errors.Join(errs...)
}

func (nd *node) end(ctx context.Context, sig os.Signal) error {
	if nd.process == nil {
		return nil
	}
	if err := nd.process.end(ctx, sig); err != nil {
		return fmt.Errorf("stop Kafka broker %d: %w", nd.id, err)
	}
	nd.process = nil
	return nil
}

// Close ends the cluster and removes its folder.
func (s *Server) Close() error { return errors.Join(s.Kill(), os.RemoveAll(s.Dir)) }

func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer func() { _ = l.Close() }() // together, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// lastLines leaves out Java's stack traces: the message is above them.
func lastLines(text []byte, n int) string {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	lines = slices.DeleteFunc(lines, func(l []byte) bool { return bytes.HasPrefix(l, []byte("\tat ")) })
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return string(bytes.Join(lines, []byte("; ")))
}
