package deploy_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.yaml.in/yaml/v3"

	"oncewatch/deploy/testenv"
)

type composeProject struct {
	Services map[string]composeService
}

type composeService struct {
	Image       string
	Command     []string
	Environment map[string]string
	User        string
	ReadOnly    bool     `yaml:"read_only"`
	CapDrop     []string `yaml:"cap_drop"`
	Restart     string
	Build       *struct{ Context, Dockerfile, Target string }
	Volumes     []composeVolume
	Ports       []struct {
		HostIP string `yaml:"host_ip"`
	}
	Healthcheck *struct {
		Test    []string
		Disable bool
	}
	DependsOn map[string]struct{ Condition string } `yaml:"depends_on"`
}

type composeVolume struct{ Type, Source, Target string }

// composeFile is the stack as docker compose itself reads it.
func composeFile(t *testing.T) composeProject {
	t.Helper()
	text, err := strict(t, "compose", "deploy/compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var project composeProject
	if err := yaml.Unmarshal([]byte(text), &project); err != nil {
		t.Fatal(err)
	}
	return project
}

func TestCompose(t *testing.T) {
	t.Parallel()
	project := composeFile(t)
	dockerfile := readFile(t, "deploy/docker/Dockerfile")
	ours := 0
	for name, s := range project.Services {
		_, tag, _ := strings.Cut(s.Image, ":")
		if tag == "" || tag == "latest" {
			t.Errorf("%s: image %q is not pinned", name, s.Image)
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s is reachable from other machines", name)
			}
		}
		for _, v := range s.Volumes {
			if v.Type != "bind" {
				continue
			}
			if _, err := os.Stat(v.Source); err != nil {
				t.Errorf("%s mounts what does not exist: %v", name, err)
			}
		}
		for other, d := range s.DependsOn {
			needs := project.Services[other]
			healthy := needs.Healthcheck != nil && len(needs.Healthcheck.Test) > 0
			if d.Condition == "service_healthy" && !healthy {
				t.Errorf("%s waits for the health of %s, which is never checked", name, other)
			}
			if d.Condition == "service_completed_successfully" && needs.Restart != "" && needs.Restart != "no" {
				t.Errorf("%s waits for the end of %s, which is restarted", name, other)
			}
		}
		if s.Build == nil {
			if s.Healthcheck == nil && name != "topic" {
				t.Errorf("%s: health is neither checked nor given up on purpose", name)
			}
			continue
		}
		ours++
		if !s.ReadOnly || s.User != "65532:65532" || !slices.Equal(s.CapDrop, []string{"ALL"}) {
			t.Errorf("%s may write, is root or keeps capabilities", name)
		}
		if s.Build.Dockerfile != "deploy/docker/Dockerfile" || !strings.Contains(dockerfile, " AS "+s.Build.Target+"\n") {
			t.Errorf("%s: no build target %+v", name, s.Build)
		}
		binary := strings.TrimSuffix(s.Build.Target, "-healthcheck")
		var variables []string
		for v := range s.Environment {
			if strings.HasPrefix(v, "ONCEWATCH_") || strings.HasPrefix(v, "REFERENCE_CONSUMER_") {
				variables = append(variables, v)
			}
		}
		knowsCommand(t, binary, s.Command, variables...)
		// A restart forgets nothing: a volume is mounted where the image has a
		// folder that the program's user may write.
		if binary == "oncewatch" {
			kept := "/var/lib/oncewatch"
			mounted := slices.ContainsFunc(s.Volumes, func(v composeVolume) bool { return v.Type == "volume" && v.Target == kept })
			if !mounted || !slices.Contains(s.Command, "--state.path="+kept) ||
				!strings.Contains(dockerfile, "\nCOPY --from=build --chown="+s.User+" /state "+kept+"\n") {
				t.Errorf("%s keeps no state: %+v", name, s)
			}
		}
	}
	if ours != 6 {
		t.Errorf("%d services run our own programs, want migrate, two consumers, pruner, producer and the exporter", ours)
	}
}

// What Prometheus scrapes and alerts are services of the stack.
func TestComposePrometheus(t *testing.T) {
	t.Parallel()
	project := composeFile(t)
	dir := t.TempDir()
	config := readFile(t, "deploy/compose/prometheus.yml")
	for _, m := range regexp.MustCompile(`([a-z0-9-]+):\d+`).FindAllStringSubmatch(config, -1) {
		if _, ok := project.Services[m[1]]; !ok && m[1] != "localhost" {
			t.Errorf("%s is scraped, and no service", m[1])
		}
	}
	config = strings.ReplaceAll(config, "/etc/prometheus/rules", filepath.Join(testenv.Root(), "alerts"))
	path := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(path, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	out := output(t, testenv.Tool(t, "promtool", "check", "config", path))
	if !strings.Contains(out, "rules found") {
		t.Errorf("no rules are loaded: %s", out)
	}
	output(t, testenv.Tool(t, "amtool", "check-config", filepath.Join(testenv.Root(), "deploy/compose/alertmanager.yml")))
}

// The role of postgres-init.sql reads the markers and nothing more, twice at
// most, whatever is created later.
func TestComposeRole(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dsn := testenv.Postgres(t)
	admin, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(ctx) }()
	var database string
	if err := admin.QueryRow(ctx, "SELECT current_database()").Scan(&database); err != nil {
		t.Fatal(err)
	}
	role := func(sql string) string { // roles are of the cluster, which other tests share
		return strings.NewReplacer("ROLE oncewatch", "ROLE compose_reader", "TO oncewatch", "TO compose_reader", "ROLE app", "ROLE compose_app").Replace(sql)
	}
	for _, sql := range []string{
		"CREATE ROLE compose_app", "GRANT ALL ON SCHEMA public TO compose_app",
		role(readFile(t, "deploy/compose/postgres-init.sql")),
		"SET ROLE compose_app", "CREATE TABLE processed_events (event_id text)", "RESET ROLE",
	} {
		if _, err := admin.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	t.Cleanup(func() {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close(ctx) }()
		if _, err := conn.Exec(ctx, "DROP OWNED BY compose_reader, compose_app; DROP ROLE compose_reader, compose_app"); err != nil {
			t.Error(err)
		}
	})
	config := admin.Config().Copy()
	config.User, config.Password = "compose_reader", "oncewatch"
	reader, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close(ctx) }()
	var n int
	if err := reader.QueryRow(ctx, "SELECT count(*) FROM processed_events").Scan(&n); err != nil {
		t.Errorf("the role cannot read the markers: %v", err)
	}
	for sql, code := range map[string]string{
		"INSERT INTO processed_events VALUES ('x')": "25006", // read-only transaction
		"CREATE TABLE mine ()":                      "25006",
		"SELECT pg_sleep(60)":                       "57014", // statement_timeout
	} {
		if strings.Contains(sql, "sleep") {
			if _, err := reader.Exec(ctx, "SET statement_timeout = '50ms'"); err != nil {
				t.Fatal(err)
			}
		}
		var pg *pgconn.PgError
		if _, err := reader.Exec(ctx, sql); !errors.As(err, &pg) || pg.Code != code {
			t.Errorf("%s: %v, want SQLSTATE %s", sql, err, code)
		}
	}
	if _, err := reader.Exec(ctx, "RESET statement_timeout; SET default_transaction_read_only = off"); err != nil {
		t.Fatal(err)
	}
	var pg *pgconn.PgError
	if _, err := reader.Exec(ctx, "DELETE FROM processed_events"); !errors.As(err, &pg) || pg.Code != "42501" {
		t.Errorf("a writing session may delete markers: %v", err)
	}
	second, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close(ctx) }()
	if third, err := pgx.ConnectConfig(ctx, config); err == nil {
		_ = third.Close(ctx)
		t.Error("the role has three connections")
	}
}
