package alerts

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the *.rules.yml files")

// The checked-in rule files are what the templates give with the defaults.
func TestFilesAreGenerated(t *testing.T) {
	files, err := Files(Defaults(), "")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		for name, text := range files {
			if err := os.WriteFile(name, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	onDisk, err := filepath.Glob("*.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	if len(onDisk) != len(files) {
		t.Errorf("%d rule files, %d templates", len(onDisk), len(files))
	}
	for name, want := range files {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what its template gives: run go generate ./alerts", name)
		}
	}
}
