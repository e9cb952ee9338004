package dbconn

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFilesAreReadForEveryConnection(t *testing.T) {
	dir := t.TempDir()
	password, dsn, pass := filepath.Join(dir, "password"), filepath.Join(dir, "dsn"), filepath.Join(dir, "pgpass")
	for name, c := range map[string]Config{
		"password-file":                 {DSN: "postgres://u@h/d", PasswordFile: password},
		"password-file over a password": {DSN: "postgres://u:old@h/d", PasswordFile: password},
		"dsn-file":                      {DSNFile: dsn},
		"passfile":                      To("host=h user=u dbname=d passfile=" + pass),
	} {
		rewrite := func(secret string) {
			write(t, password, secret+"\n")
			write(t, dsn, "postgres://u:"+secret+"@h/d?application_name=other\n")
			write(t, pass, "h:5432:d:u:"+secret+"\n")
		}
		rewrite("first")
		pc, err := c.Pool()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		pc.ConnConfig.RuntimeParams["application_name"] = "mine"
		if pc.ConnConfig.Password != "first" {
			t.Errorf("%s: %q at first", name, pc.ConnConfig.Password)
		}
		rewrite("second")
		next := pc.ConnConfig.Copy()
		if err := pc.BeforeConnect(t.Context(), next); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if next.Password != "second" {
			t.Errorf("%s: %q after it was rewritten", name, next.Password)
		}
		if next.RuntimeParams["application_name"] != "mine" {
			t.Errorf("%s: what the program set is lost: %v", name, next.RuntimeParams)
		}
	}
}

// A file that is gone costs the connections that need it, with its name.
func TestAFileIsGone(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "password"), "first")
	pc, err := Config{DSN: "host=h", PasswordFile: path}.Pool()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := pc.BeforeConnect(t.Context(), pc.ConnConfig.Copy()); err == nil || !strings.Contains(err.Error(), "postgres.password-file") {
		t.Errorf("%v, want the key", err)
	}
}

func TestConnectTimeout(t *testing.T) {
	for dsn, want := range map[string]time.Duration{"host=h": 5 * time.Second, "host=h connect_timeout=7": 7 * time.Second} {
		pc, err := To(dsn).Pool()
		if err != nil || pc.ConnConfig.ConnectTimeout != want {
			t.Errorf("%s: %v, %v; want %v", dsn, pc.ConnConfig.ConnectTimeout, err, want)
		}
	}
}

func TestMistakesNameTheKeyAndTheRemedy(t *testing.T) {
	dir := t.TempDir()
	empty, bad := write(t, filepath.Join(dir, "empty"), "\n"), write(t, filepath.Join(dir, "bad"), "postgres://u:hunter2%zz@h/d")
	for want, c := range map[string]Config{
		"remove one":                        {DSN: "host=h", DSNFile: empty},
		"postgres.dsn-file: " + empty:       {DSNFile: empty},
		"postgres.dsn-file: the URL":        {DSNFile: bad},
		"postgres.dsn: the URL":             To("postgres://u:hunter2%zz@h/d"),
		"postgres.dsn: cannot be parsed":    To("hunter2 = = x"),
		"postgres.dsn: names a file":        To("host=h sslmode=verify-full sslrootcert=/nowhere/root.crt"),
		"postgres.password-file: open /now": {PasswordFile: "/nowhere/password"},
	} {
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A setting that is misspelt, or has a value that there is none of, is named
// with what it should be, and nothing of the string is repeated.
func TestMisspeltConnectionStrings(t *testing.T) {
	for dsn, says := range map[string]string{
		"host=h sslmode=hunter2":                      "sslmode: want disable",
		"hots=h password=hunter2":                     "did you mean host?",
		"postgres://u:hunter2@h/d?sslmod=require":     "did you mean sslmode?",
		"host=h connect_timeout=hunter2":              "connect_timeout: want seconds",
		"host=h target_session_attrs=hunter2":         "target_session_attrs: want any",
		"host=h port=hunter2":                         "port: want a number",
		"host=h sslrootcert=/nowhere sslmode=require": "/nowhere",
	} {
		if _, err := To(dsn).Pool(); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", dsn, err, says)
		}
	}
	if _, err := To("host=h application_name=a search_path=b statement_timeout=5 options=-cjit=off role=r").Pool(); err != nil {
		t.Errorf("settings of the server: %v", err)
	}
}
