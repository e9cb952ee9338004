package privileges

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
)

// The script gives the exporter's user in Apache Kafka what it needs, and no
// more. That these rights are enough, and what is said when one is missing, is
// tested in collectors/kafka with the same authorizer.
func TestKafkaRights(t *testing.T) {
	t.Parallel()
	s := testenv.KafkaServer(t, kafkaserver.Options{Config: map[string]string{
		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":           "User:ANONYMOUS",
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// What kafka-acls.sh of a Kafka installation runs.
	tool, err := kafkaserver.Tool(ctx, "org.apache.kafka.tools.AclCommand")
	if err != nil {
		testenv.Missing(t, "Kafka's command line tools", err)
	}
	bin := t.TempDir()
	script := "#!/bin/sh\nexec '" + strings.Join(tool, "' '") + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "kafka-acls.sh"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "sh", "grant-kafka.sh", "--bootstrap-server", s.Brokers()[0])
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "ONCEWATCH_PRINCIPAL=User:watcher")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	results, err := kadm.NewClient(client).DescribeACLs(ctx, kadm.NewACLs().AnyResource().Allow().AllowHosts().Deny().DenyHosts().
		Operations(kadm.OpAny).ResourcePatternType(kadm.ACLPatternAny))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		for _, acl := range r.Described {
			got = append(got, strings.Join([]string{acl.Principal, acl.Permission.String(), acl.Operation.String(), acl.Type.String(), acl.Name}, " "))
		}
	}
	slices.Sort(got)
	got = slices.Compact(got)
	want := []string{
		"User:watcher ALLOW DESCRIBE GROUP *",
		"User:watcher ALLOW DESCRIBE TOPIC *",
		"User:watcher ALLOW DESCRIBE_CONFIGS TOPIC *",
	}
	if !slices.Equal(got, want) {
		t.Errorf("rights:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
