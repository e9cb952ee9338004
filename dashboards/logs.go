package dashboards

import (
	"fmt"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/loki"
)

var logsource = common.DataSourceRef{Type: cog.ToPtr("loki"), Uid: cog.ToPtr("${datasource}")}

// withoutField counts lines about events that lack one of some fields; without
// fields, all. LogQL
// takes no field named offset (a word of its own): it is read as position.
func withoutField(format string, fields ...string) string {
	filter := ""
	if len(fields) > 0 {
		filter = "| " + strings.Join(fields, `="" or `) + `="" `
	}
	return fmt.Sprintf(`sum(count_over_time({$stream} | %s event_id="event_id", consumer_group="consumer_group", topic="topic", partition="partition", position="offset", outcome="outcome" | outcome=~"processed|duplicate" %s[$__auto]))`, format, filter)
}

// Logs is a dashboard of one panel for Loki: lines about events that lack a
// field, in logs of a format, json or logfmt.
func Logs(format string) ([]byte, error) {
	if format != "json" && format != "logfmt" {
		return nil, fmt.Errorf("--loki: logs of the format %q: want json or logfmt", format)
	}
	queries := []struct{ legend, expr string }{
		{"about events", withoutField(format)},
		{"without event_id", withoutField(format, "event_id")},
		{"without consumer_group", withoutField(format, "consumer_group")},
		{"without topic, partition or offset", withoutField(format, "topic", "partition", "position")},
	}
	draw := func(p panel) (dashboard.Panel, error) {
		built, err := lines(wholeNumbers)(p)
		built.Datasource = &logsource
		built.Targets = nil
		for i, q := range queries {
			built.Targets = append(built.Targets, variants.Dataquery(loki.Dataquery{
				RefId: cog.ToPtr(refID(i)), Datasource: &logsource, Expr: q.expr, LegendFormat: &q.legend,
				QueryType: cog.ToPtr("range"), EditorMode: cog.ToPtr(loki.QueryEditorModeCode),
			}))
		}
		return built, err
	}
	p := page{
		uid: "oncewatch-logs", title: "oncewatch / Do log lines say which event?", from: "now-6h",
		description: "Line 6 of the checklist, for who has Loki: lines about handled events that lack a field.",
		rows: []row{{"Log lines", []panel{{
			title:       "Lines about events without a field",
			description: "Good is none. Set the fields once for all that is logged while an event is handled.",
			noData:      "no line about an event in the streams of this selector.", unit: "short", width: 24, height: 12, draw: draw,
		}}}},
	}
	stream := `app="consumer"`
	return p.build(nil, []dashboard.AnnotationQuery{}, []dashboard.VariableModel{
		{Type: dashboard.VariableTypeDatasource, Name: "datasource", Label: cog.ToPtr("Data source"), Query: &dashboard.StringOrMap{String: cog.ToPtr("loki")}},
		{Type: dashboard.VariableTypeTextbox, Name: "stream", Label: cog.ToPtr("Stream"), Query: &dashboard.StringOrMap{String: &stream},
			Current: &dashboard.VariableOption{Text: dashboard.StringOrArrayOfString{String: &stream}, Value: dashboard.StringOrArrayOfString{String: &stream}}},
	}, false)
}
