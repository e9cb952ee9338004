package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"oncewatch/deploy/testenv"
)

// The files that Grafana reads at start. Grafana itself cannot be had here: a
// misspelt key, a link to a data source that does not exist and a folder that
// the stack does not mount are what can be found without it.
func TestGrafanaProvisioning(t *testing.T) {
	t.Parallel()
	strictYAML := func(path string, into any) {
		t.Helper()
		decoder := yaml.NewDecoder(strings.NewReader(readFile(t, path)))
		decoder.KnownFields(true)
		if err := decoder.Decode(into); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	var sources struct {
		APIVersion  int `yaml:"apiVersion"`
		Datasources []struct {
			Name, UID, Type, Access, URL string
			IsDefault                    bool `yaml:"isDefault"`
			Editable                     bool
			JSONData                     struct {
				HTTPMethod                  string `yaml:"httpMethod"`
				PrometheusType              string `yaml:"prometheusType"`
				TimeInterval                string `yaml:"timeInterval"`
				ManageAlerts                bool   `yaml:"manageAlerts"`
				Implementation              string
				ExemplarTraceIDDestinations []struct {
					Name            string
					DatasourceUID   string `yaml:"datasourceUid"`
					URLDisplayLabel string `yaml:"urlDisplayLabel"`
				} `yaml:"exemplarTraceIdDestinations"`
				NodeGraph       struct{ Enabled bool } `yaml:"nodeGraph"`
				TracesToMetrics *struct {
					DatasourceUID      string `yaml:"datasourceUid"`
					SpanStartTimeShift string `yaml:"spanStartTimeShift"`
					SpanEndTimeShift   string `yaml:"spanEndTimeShift"`
					Queries            []struct{ Name, Query string }
				} `yaml:"tracesToMetrics"`
			} `yaml:"jsonData"`
		}
	}
	strictYAML("deploy/grafana/provisioning/datasources/oncewatch.yaml", &sources)
	var providers struct {
		APIVersion int `yaml:"apiVersion"`
		Providers  []struct {
			Name, Folder          string
			FolderUID             string `yaml:"folderUid"`
			Type                  string
			DisableDeletion       bool `yaml:"disableDeletion"`
			AllowUIUpdates        bool `yaml:"allowUiUpdates"`
			UpdateIntervalSeconds int  `yaml:"updateIntervalSeconds"`
			Options               struct {
				Path                      string
				FoldersFromFilesStructure bool `yaml:"foldersFromFilesStructure"`
			}
		}
	}
	strictYAML("deploy/grafana/provisioning/dashboards/oncewatch.yaml", &providers)

	project := composeFile(t)
	kinds := map[string]string{}
	for _, s := range sources.Datasources {
		kinds[s.UID] = s.Type
		host, _, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
		if _, ok := project.Services[host]; !ok {
			t.Errorf("data source %s is at %s, which is no service of the stack", s.Name, s.URL)
		}
	}
	exemplars := false
	for _, s := range sources.Datasources {
		for _, d := range s.JSONData.ExemplarTraceIDDestinations {
			exemplars = exemplars || d.Name == "trace_id" && kinds[d.DatasourceUID] == "tempo"
		}
		if m := s.JSONData.TracesToMetrics; m != nil && kinds[m.DatasourceUID] != "prometheus" {
			t.Errorf("traces lead to the metrics of %q", m.DatasourceUID)
		}
	}
	if !exemplars {
		t.Error("exemplars with a trace_id do not lead to the traces")
	}

	mounted := map[string]string{}
	for _, v := range project.Services["grafana"].Volumes {
		mounted[v.Target] = v.Source
	}
	boards, err := filepath.Glob(filepath.Join(testenv.Root(), "dashboards", "*.json"))
	if err != nil || len(boards) != 3 {
		t.Fatalf("%v %v", boards, err)
	}
	for _, board := range boards {
		if mounted[providers.Providers[0].Options.Path+"/"+filepath.Base(board)] != board {
			t.Errorf("%s is not mounted where Grafana looks for dashboards", board)
		}
	}
	if info, err := os.Stat(mounted["/etc/grafana/provisioning"]); err != nil || !info.IsDir() {
		t.Errorf("the provisioning is not mounted: %v", err)
	}
	home := project.Services["grafana"].Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	if mounted[home] == "" {
		t.Errorf("the home dashboard %s is not mounted", home)
	}
}
