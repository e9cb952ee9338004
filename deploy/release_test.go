package deploy_test

import (
	"os"
	"path/filepath"
	"slices"
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
	boms := map[string]bool{}
	for _, s := range config.SBOMs {
		boms[s.Artifacts] = true
	}
	if !boms["archive"] || !boms["source"] {
		t.Errorf("a bill of materials is made of %v", boms)
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
