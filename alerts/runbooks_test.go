package alerts

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
)

var (
	heading = regexp.MustCompile(`(?m)^## (.+)$`)
	block   = regexp.MustCompile("(?s)```sh\n(.*?)```")
	step    = regexp.MustCompile(`(?m)^# (\d)\. `)
)

// Every alert has a page with the four headings, three commands and what not to
// do; no page is left over.
func TestRunbooks(t *testing.T) {
	pages, err := filepath.Glob("runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	// replay.md is of no alert: deploy follows it step by step.
	want := []string{"runbooks/README.md", "runbooks/replay.md"}
	for _, a := range alerts(t) {
		name := "runbooks/" + a.Alert + ".md"
		want = append(want, name)
		content, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
			continue
		}
		text := string(content)
		if !strings.HasPrefix(text, "# "+a.Alert+"\n\nSeverity: "+a.Labels["severity"]+".\n") {
			t.Errorf("%s: does not begin with its name and severity", name)
		}
		var headings []string
		for _, m := range heading.FindAllStringSubmatch(text, -1) {
			headings = append(headings, m[1])
		}
		if !slices.Equal(headings, []string{"Meaning", "Impact", "Diagnosis", "Mitigation"}) {
			t.Errorf("%s: headings %q", name, headings)
		}
		for _, section := range heading.Split(text, -1)[1:] {
			if len(strings.TrimSpace(section)) < 40 {
				t.Errorf("%s: a section says nothing: %q", name, section)
			}
		}
		if n := len(step.FindAllString(text, -1)); n != 3 {
			t.Errorf("%s: %d commands, want 3", name, n)
		}
		_, mitigation, _ := strings.Cut(text, "## Mitigation")
		if !strings.Contains(mitigation, "Do not") {
			t.Errorf("%s: does not say what not to do", name)
		}
	}
	slices.Sort(want)
	if !slices.Equal(pages, want) {
		t.Errorf("pages %q,\nwant %q", pages, want)
	}
}

// The commands of every page run as they stand there: the shell reads them, psql
// executes the SQL in a real database with the reference consumer's tables, and
// the other programs are called with options they have.
func TestRunbookCommands(t *testing.T) {
	psql, err := exec.LookPath("psql")
	if err != nil {
		testenv.Missing(t, "psql", err)
	}
	migrations, err := filepath.Glob("../reference-consumer/schema/migrations/*.sql")
	if err != nil || len(migrations) == 0 {
		t.Fatal("no migrations of the reference consumer", err)
	}
	dsn := testenv.Postgres(t)
	for _, m := range migrations {
		if out, err := exec.Command(psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", dsn, "-f", m).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", m, err, out)
		}
	}
	bin := t.TempDir()
	script := func(name, text string) {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// psql is real, and stops at the first error. The others check their options.
	script("psql", `exec `+psql+` -X -v ON_ERROR_STOP=1 -d '`+dsn+`' "$@"`)
	for name, options := range options {
		script(name, `for a; do case "$a" in --*) case " `+strings.Join(options, " ")+` " in *" ${a%%=*} "*) ;; *) echo "`+name+`: unknown option $a" >&2; exit 64;; esac;; esac; done
case "`+name+`" in kafka-configs.sh) echo "retention.ms=604800000";; curl) echo "oncewatch_build_info 1
processed_events_unverified_records 1
consumer_group_offsets_missing 1
consumer_start_time_seconds 1
processed_events_rows_without_time 1
consumer_lag_seconds 1
consumer_lag 1
oncewatch_errors_total 1
oncewatch_collector_success 1
processed_events_unprotected_records 1
processed_events_divergent_rows 1
outbox_pending 1
marker_prune_deleted_total 1
events_handled_total 1
\"lastError\":\"\"";; esac`)
	}
	pages, err := filepath.Glob("runbooks/[A-Z][a-z]*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal("no pages", err)
	}
	for _, page := range pages {
		t.Run(filepath.Base(page), func(t *testing.T) {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range block.FindAllStringSubmatch(string(text), -1) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", m[1])
				cmd.Env = append(os.Environ(), "PATH="+bin+":/usr/bin:/bin")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			}
		})
	}
}

// options of the programs in the pages: Kafka's scripts as of 3.7, oncewatch and
// the reference consumer as in CONTRACT.md.
var options = map[string][]string{
	"kafka-consumer-groups.sh":     {"--bootstrap-server", "--describe", "--group", "--state", "--members", "--verbose"},
	"kafka-configs.sh":             {"--bootstrap-server", "--describe", "--all", "--alter", "--add-config", "--entity-type", "--entity-name"},
	"kafka-console-consumer.sh":    {"--bootstrap-server", "--topic", "--partition", "--offset", "--max-messages", "--property"},
	"kafka-get-offsets.sh":         {"--bootstrap-server", "--topic", "--time"},
	"kafka-acls.sh":                {"--bootstrap-server", "--list", "--add", "--group", "--topic", "--operation", "--allow-principal"},
	"kafka-broker-api-versions.sh": {"--bootstrap-server"},
	"oncewatch":                    {"--config.file"},
	"reference-consumer":           {"--kafka.brokers", "--group", "--retention", "--once", "--batch-size"},
	"curl":                         {},
}

// kafkaTools are the classes that Kafka's scripts run.
var kafkaTools = map[string]string{
	"kafka-consumer-groups.sh":     "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
	"kafka-configs.sh":             "kafka.admin.ConfigCommand",
	"kafka-console-consumer.sh":    "org.apache.kafka.tools.consumer.ConsoleConsumer",
	"kafka-get-offsets.sh":         "org.apache.kafka.tools.GetOffsetShell",
	"kafka-acls.sh":                "org.apache.kafka.tools.AclCommand",
	"kafka-broker-api-versions.sh": "org.apache.kafka.tools.BrokerApiVersionsCommand",
}

// Kafka's own tools know every option that the pages use.
func TestKafkaOptions(t *testing.T) {
	t.Parallel()
	for name, class := range kafkaTools {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		tool, err := kafkaserver.Tool(ctx, class)
		if err != nil {
			testenv.Missing(t, "Kafka's command line tools", err)
		}
		help, _ := exec.CommandContext(ctx, tool[0], append(tool[1:], "--help")...).CombinedOutput() // some end with 1
		for _, option := range options[name] {
			if !strings.Contains(string(help), option) {
				t.Errorf("%s has no option %s:\n%.600s", name, option, help)
			}
		}
	}
}
