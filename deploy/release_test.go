package deploy_test

import (
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"oncewatch/deploy/testenv"
)

// The release configuration as goreleaser itself reads it.
func TestRelease(t *testing.T) {
	t.Parallel()
	text, err := strict(t, "goreleaser", ".goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Builds []struct {
			ID, Main, Binary, ModTimestamp string
			Env                            []string
			Goos, Goarch                   []string
		}
		Archives []struct {
			Files []struct {
				Source string `yaml:"src"`
			}
		}
		Checksum struct{ Algorithm string }
		SBOMs    []struct{ Artifacts string }
	}
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	binaries := map[string]bool{}
	for _, b := range config.Builds {
		binaries[b.Binary] = true
		if info, err := os.Stat(filepath.Join(testenv.Root(), b.Main)); err != nil || !info.IsDir() {
			t.Errorf("%s is built from %s: %v", b.ID, b.Main, err)
		}
		if !slices.Contains(b.Env, "CGO_ENABLED=0") || !slices.Contains(b.Goarch, "arm64") {
			t.Errorf("%s is not static, or not built for arm64: %+v", b.ID, b)
		}
	}
	if !binaries["oncewatch"] || !binaries["reference-consumer"] || len(binaries) != 2 {
		t.Errorf("the release has %v", binaries)
	}
	if config.Checksum.Algorithm != "sha256" {
		t.Errorf("checksums: %+v", config.Checksum)
	}
	if len(config.SBOMs) != 1 || config.SBOMs[0].Artifacts != "binary" {
		t.Errorf("a bill of materials is made of %v", config.SBOMs)
	}
	archived := 0
	for _, a := range config.Archives {
		for _, f := range a.Files {
			archived++
			if found, err := filepath.Glob(filepath.Join(testenv.Root(), f.Source)); err != nil || len(found) == 0 {
				t.Errorf("the archive takes %s, which does not exist (%v)", f.Source, err)
			}
		}
	}
	if archived < 5 {
		t.Errorf("the archives take %d kinds of files beside the programs", archived)
	}
}

// The same sources give the same bytes, with the flags of a release: in this
// folder and its history, and in another one without any.
func TestBuildsAreReproducible(t *testing.T) {
	t.Parallel()
	dir, err := staticBuilds()
	if err != nil {
		t.Fatal(err)
	}
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = testenv.Root()
	names, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	elsewhere := t.TempDir()
	for _, name := range strings.Split(strings.TrimRight(string(names), "\x00"), "\x00") {
		to := filepath.Join(elsewhere, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(testenv.Root(), name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and not yet committed
		}
		if info, statErr := os.Stat(filepath.Join(testenv.Root(), name)); statErr == nil && info.IsDir() {
			continue // a link to a folder
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out := t.TempDir()
	build := exec.Command("go", append(append([]string{"build", "-o", out}, releaseFlags...), ".", "./reference-consumer")...)
	build.Dir, build.Env = elsewhere, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	output(t, build)
	for _, name := range []string{"oncewatch", "reference-consumer"} {
		var sums [2][sha256.Size]byte
		for i, folder := range []string{dir, out} {
			bytes, err := os.ReadFile(filepath.Join(folder, name))
			if err != nil {
				t.Fatal(err)
			}
			sums[i] = sha256.Sum256(bytes)
		}
		if sums[0] != sums[1] {
			t.Errorf("%s: two builds differ: %x and %x", name, sums[0], sums[1])
		}
	}
	// What is built here is what is released.
	for _, file := range []string{".goreleaser.yaml", "deploy/docker/Dockerfile"} {
		text, err := os.ReadFile(filepath.Join(testenv.Root(), file))
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range []string{"-trimpath", "-buildvcs=false", "-s -w", versionFlag, revisionFlag} {
			if !strings.Contains(string(text), flag) {
				t.Errorf("%s builds without %s", file, flag)
			}
		}
	}
}
