//go:build ignore

// Checks what a cluster or an engine would only refuse when it is too late:
//
//	go run -modfile=tools.mod deploy/strict/main.go chart deploy/helm/oncewatch [--release=NAME] [--kubernetes=VERSION] [VALUES.yaml …]
//	go run -modfile=tools.mod deploy/strict/main.go compose deploy/compose/compose.yaml
//	go run -modfile=tools.mod deploy/strict/main.go goreleaser .goreleaser.yaml
//
// chart lints and renders the chart and decodes every object strictly, with
// Kubernetes' own types and those of the Prometheus operator: a misspelt key is
// an error. compose loads the file as `docker compose config` does, and
// goreleaser its file as the program does. Each writes what it read to standard
// output; errors go to standard error, and the exit code is 1.
//
// It is not part of the module's packages: its libraries are of tools.mod.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/goreleaser/goreleaser/v2/pkg/config"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

func main() {
	log.SetOutput(io.Discard) // helm tells of every symbolic link it follows
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) < 2 {
		return errors.New("usage: chart DIR [--release=NAME] [--kubernetes=VERSION] [VALUES …] | compose FILE | goreleaser FILE")
	}
	switch args[0] {
	case "chart":
		return chart(args[1], args[2:], out)
	case "compose":
		return compose(args[1], out)
	case "goreleaser":
		f, err := os.Open(args[1])
		if err != nil {
			return err
		}
		defer f.Close()
		project, err := config.LoadReader(f)
		if err != nil {
			return err
		}
		return write(out, project)
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func write(out io.Writer, v any) error {
	text, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

func compose(path string, out io.Writer) error {
	options, err := cli.NewProjectOptions([]string{path}, cli.WithOsEnv, cli.WithDotEnv)
	if err != nil {
		return err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return err
	}
	text, err := project.MarshalYAML()
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

func chart(dir string, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("chart", flag.ContinueOnError)
	name := flags.String("release", "test", "name of the release")
	kubernetes := flags.String("kubernetes", "1.37", "version of Kubernetes to render for")
	if err := flags.Parse(args); err != nil {
		return err
	}
	valueFiles := flags.Args()
	capabilities := chartutil.DefaultCapabilities.Copy()
	version, err := chartutil.ParseKubeVersion(*kubernetes)
	if err != nil {
		return err
	}
	capabilities.KubeVersion = *version
	values := map[string]any{}
	for _, file := range valueFiles {
		more, err := chartutil.ReadValuesFile(file)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		values = chartutil.CoalesceTables(more, values)
	}
	var errs []error
	for _, m := range lint.All(dir, values, "test", true).Messages {
		if m.Severity >= support.WarningSev {
			errs = append(errs, fmt.Errorf("lint: %s: %w", m.Path, m.Err))
		}
	}
	loaded, err := loader.LoadDir(dir)
	if err != nil {
		return err
	}
	if !chartutil.IsCompatibleRange(loaded.Metadata.KubeVersion, version.Version) {
		return fmt.Errorf("%s wants Kubernetes %s, not %s", loaded.Name(), loaded.Metadata.KubeVersion, version.Version)
	}
	release := chartutil.ReleaseOptions{Name: *name, Namespace: "test", Revision: 1, IsInstall: true}
	render, err := chartutil.ToRenderValues(loaded, values, release, capabilities)
	if err != nil {
		return err
	}
	files, err := engine.Engine{Strict: true}.Render(loaded, render)
	if err != nil {
		return err
	}
	if err := monitoring.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if filepath.Ext(name) != ".yaml" {
			continue
		}
		for _, doc := range strings.Split("\n"+files[name], "\n---") {
			doc = strings.TrimSpace(doc)
			if doc == "" {
				continue
			}
			if _, _, err := decoder.Decode([]byte(doc), nil, nil); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w\n%s", name, err, numbered(doc)))
			}
			fmt.Fprintf(out, "---\n%s\n", doc)
		}
	}
	return errors.Join(errs...)
}

func numbered(doc string) string {
	var b bytes.Buffer
	for i, line := range strings.Split(doc, "\n") {
		if i == 80 {
			b.WriteString("…\n")
			break
		}
		fmt.Fprintf(&b, "%4d %s\n", i+1, line)
	}
	return b.String()
}
