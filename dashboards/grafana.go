package dashboards

// The layer between the foundation SDK and the files. The SDK's builders check
// no meaning and leave out or get wrong, without an error, what Grafana needs:
// a panel's id, a query's refId, a tooltip's mode, a link's type, and they hide
// links and annotations in a menu. Everything a dashboard contains passes
// through here, so each of these is put right in one place.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// gridWidth is the number of columns of Grafana's grid.
const gridWidth = 24

// datasource refers to the dashboard's variable, never to a fixed uid.
var datasource = common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${datasource}")}

// page is one dashboard before it is laid out.
type page struct {
	uid, title, description string
	from                    string // the default time range reaches back to here
	worst                   string // query of the hidden variable with the groups that are drawn; none if empty
	oneGroup                bool   // about one consumer group at a time
	rows                    []row
}

// row is a headline and the panels below it, placed left to right.
type row struct {
	title  string
	panels []panel
}

// query is one PromQL expression of a panel.
type query struct {
	expr      string
	legend    string // legend of a series; column of a table
	exemplars bool   // also ask for exemplars, which link to traces
}

// step colours everything from value on; the first step has no value.
type step struct {
	from  float64
	color string
}

// panel is what every kind of panel must say about itself.
type panel struct {
	title       string
	description string // what good looks like, and what to do when it does not
	noData      string // shown instead of "No data", after "Not known: ": what may be missing
	unit        string
	runbooks    []string // alerts whose runbooks the panel links to
	base        string   // colour below the first step; empty is "green"
	steps       []step
	width       uint32
	height      uint32
	queries     []query
	draw        func(panel) (dashboard.Panel, error)
}

// build lays the page out and returns its JSON.
func (p page) build(runbookURL func(alert string) string, annotations []dashboard.AnnotationQuery, variables []dashboard.VariableModel, askDataSource bool) ([]byte, error) {
	board := dashboard.NewDashboard()
	board.Uid = &p.uid
	board.Title = &p.title
	board.Description = &p.description
	board.Tags = []string{dashboardTag}
	board.Editable = cog.ToPtr(false)
	board.GraphTooltip = cog.ToPtr(dashboard.DashboardCursorSyncCrosshair)
	board.Time = &dashboard.DashboardDashboardTime{From: p.from, To: "now"}
	board.Refresh = cog.ToPtr("1m")
	board.Templating.List = variables
	board.Annotations.List = annotations
	board.Links = []dashboard.DashboardLink{{
		Title: "oncewatch", Type: dashboard.DashboardLinkTypeDashboards, Icon: "external link",
		Tooltip: "The other oncewatch dashboards, with the same selection and time range",
		Tags:    []string{dashboardTag}, IncludeVars: true, KeepTime: true,
	}}

	var (
		errs   []error
		y      uint32
		nextID uint32 = 1
	)
	for _, r := range p.rows {
		board.Panels = append(board.Panels, dashboard.PanelOrRowPanel{RowPanel: &dashboard.RowPanel{
			Type: "row", Id: nextID, Title: &r.title, Panels: []dashboard.Panel{},
			GridPos: &dashboard.GridPos{X: 0, Y: y, W: gridWidth, H: 1},
		}})
		nextID++
		y++
		var x, lineHeight uint32
		for _, pan := range r.panels {
			built, err := pan.build(runbookURL)
			if err != nil {
				errs = append(errs, fmt.Errorf("dashboard %s, panel %q: %w", p.uid, pan.title, err))
				continue
			}
			if x+pan.width > gridWidth {
				x, y, lineHeight = 0, y+lineHeight, 0
			}
			built.Id = cog.ToPtr(nextID)
			nextID++
			built.GridPos = &dashboard.GridPos{X: x, Y: y, W: pan.width, H: pan.height}
			x += pan.width
			lineHeight = max(lineHeight, pan.height)
			board.Panels = append(board.Panels, dashboard.PanelOrRowPanel{Panel: &built})
		}
		y += lineHeight
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(board)
	if err == nil && askDataSource {
		raw, err = asking(raw, board)
	}
	var indented bytes.Buffer
	if err == nil {
		err = json.Indent(&indented, raw, "", "  ")
	}
	raw = indented.Bytes()
	if err != nil {
		return nil, fmt.Errorf("dashboard %s: %w", p.uid, err)
	}
	// encoding/json escapes these for HTML, also inside the SDK's own
	// marshallers; queries are easier to review without.
	raw = bytes.ReplaceAll(raw, []byte(`\u003c`), []byte("<"))
	raw = bytes.ReplaceAll(raw, []byte(`\u003e`), []byte(">"))
	raw = bytes.ReplaceAll(raw, []byte(`\u0026`), []byte("&"))
	return append(raw, '\n'), nil
}

// asking puts in front of a dashboard what Grafana asks for at an import by hand,
// and what it has to have installed. The SDK does not know of it.
//
//lint:ignore SA1019 this is the schema that is written
func asking(raw []byte, board *dashboard.Dashboard) ([]byte, error) {
	type plugin struct {
		Type    string `json:"type"`
		ID      string `json:"id"`
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	head := struct {
		Inputs   []map[string]string `json:"__inputs"`
		Requires []plugin            `json:"__requires"`
	}{
		[]map[string]string{{
			"name": input, "label": "Prometheus", "description": "The Prometheus that scrapes oncewatch and its rules run in.",
			"type": "datasource", "pluginId": "prometheus", "pluginName": "Prometheus",
		}},
		[]plugin{{"grafana", "grafana", "Grafana", "11.0.0"}, {"datasource", "prometheus", "Prometheus", "1.0.0"}},
	}
	kinds := map[string]bool{}
	for _, p := range board.Panels {
		if p.Panel != nil && !kinds[p.Panel.Type] {
			kinds[p.Panel.Type] = true
			head.Requires = append(head.Requires, plugin{"panel", p.Panel.Type, p.Panel.Type, "1.0.0"})
		}
	}
	front, err := json.Marshal(head)
	if err != nil {
		return nil, err
	}
	front[len(front)-1] = ','
	return append(front, raw[1:]...), nil
}

func (p panel) build(runbookURL func(alert string) string) (dashboard.Panel, error) {
	built, err := p.draw(p)
	if err != nil {
		return dashboard.Panel{}, err
	}
	built.Title = &p.title
	built.Description = &p.description
	if built.Datasource == nil {
		built.Datasource = &datasource
	}
	built.Transparent = nil
	built.RepeatDirection = nil
	for _, alert := range p.runbooks {
		built.Links = append(built.Links, dashboard.DashboardLink{
			Title: "Runbook: " + alert, Type: dashboard.DashboardLinkTypeLink, Icon: "doc",
			Tooltip: "What " + alert + " means and what to do",
			Url:     cog.ToPtr(runbookURL(alert)), Tags: []string{}, TargetBlank: true,
		})
	}
	if built.FieldConfig == nil {
		built.FieldConfig = &dashboard.FieldConfigSource{}
	}
	defaults := &built.FieldConfig.Defaults
	// Nothing is no good news.
	defaults.NoValue = cog.ToPtr("Not known: " + p.noData)
	if p.unit != "" {
		defaults.Unit = &p.unit
	}
	if defaults.Thresholds == nil {
		defaults.Thresholds = p.thresholds()
	}
	if built.FieldConfig.Overrides == nil {
		built.FieldConfig.Overrides = []dashboard.DashboardFieldConfigSourceOverrides{}
	}
	return built, nil
}

func (p panel) thresholds() *dashboard.ThresholdsConfig {
	base := p.base
	if base == "" {
		base = "green"
	}
	steps := []dashboard.Threshold{{Color: base}}
	for _, s := range p.steps {
		steps = append(steps, dashboard.Threshold{Value: cog.ToPtr(s.from), Color: s.color})
	}
	return &dashboard.ThresholdsConfig{Mode: dashboard.ThresholdsModeAbsolute, Steps: steps}
}

// targets gives every query its refId, its datasource and its kind.
func (p panel) targets(format prometheus.PromQueryFormat, instant bool) []variants.Dataquery {
	var targets []variants.Dataquery
	for i, q := range p.queries {
		targets = append(targets, prometheus.Dataquery{
			RefId: cog.ToPtr(refID(i)), Datasource: &datasource,
			Expr: q.expr, LegendFormat: &q.legend, EditorMode: cog.ToPtr(prometheus.QueryEditorModeCode),
			Format: &format, Instant: &instant, Range: cog.ToPtr(!instant), Exemplar: cog.ToPtr(q.exemplars),
		})
	}
	return targets
}

func refID(i int) string { return string(rune('A' + i)) }

// lines is a time series panel.
func lines(change ...func(*timeseries.PanelBuilder)) func(panel) (dashboard.Panel, error) {
	return func(p panel) (dashboard.Panel, error) {
		b := timeseries.NewPanelBuilder().
			Orientation(common.VizOrientationAuto).
			Legend(common.NewVizLegendOptionsBuilder().
				DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).ShowLegend(true)).
			Tooltip(common.NewVizTooltipOptionsBuilder().
				Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)).
			DrawStyle(common.GraphDrawStyleLine).
			LineWidth(2).
			FillOpacity(0).
			AxisSoftMin(0).
			ShowPoints(common.VisibilityModeNever).
			// A series that was withheld is a gap, not a line drawn across it.
			SpanNulls(common.BoolOrFloat64{Bool: cog.ToPtr(false)}).
			ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdPaletteClassic))
		if len(p.steps) > 0 {
			b.ThresholdsStyle(common.NewGraphThresholdsStyleConfigBuilder().Mode(common.GraphThresholdsStyleModeDashed))
		}
		for _, c := range change {
			c(b)
		}
		built, err := b.Build()
		built.Targets = p.targets(prometheus.PromQueryFormatTimeSeries, false)
		return built, err
	}
}

// bars stacks what happened in each interval.
func bars(b *timeseries.PanelBuilder) {
	b.DrawStyle(common.GraphDrawStyleBars).FillOpacity(60).
		Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal).Group("A"))
}

// shouldBeZero scales the axis of a count whose every unit is a fault: 1 must
// not look like 0, and 0 not like the middle of nothing.
func shouldBeZero(b *timeseries.PanelBuilder) { b.AxisSoftMax(2).Decimals(0) }

// aMinute keeps seconds small on an axis of minutes.
func aMinute(b *timeseries.PanelBuilder) { b.AxisSoftMax(1) }

// wholeNumbers is for counts.
func wholeNumbers(b *timeseries.PanelBuilder) { b.AxisSoftMax(10).Decimals(0) }

// numbers is a panel of big values as they are now, in the order of its queries;
// a column says how one of them is shown. Where the worst of many is meant, the
// query takes it.
func numbers(columns ...column) func(panel) (dashboard.Panel, error) {
	return func(p panel) (dashboard.Panel, error) {
		b := stat.NewPanelBuilder().
			Orientation(common.VizOrientationVertical).
			GraphMode(common.BigValueGraphModeNone).
			ColorMode(common.BigValueColorModeValue).
			TextMode(textMode(p)).
			ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"}).Fields("")).
			ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdThresholds))
		if p.unit == "percentunit" {
			b.Decimals(1) // else four digits of nothing: 0.0101 %
		}
		for _, c := range columns {
			b.OverrideByName(c.name, c.properties)
		}
		built, err := b.Build()
		built.Targets = p.targets(prometheus.PromQueryFormatTimeSeries, true)
		return built, err
	}
}

// textMode names the values where there are several.
func textMode(p panel) common.BigValueTextMode {
	if len(p.queries) > 1 {
		return common.BigValueTextModeValueAndName
	}
	return common.BigValueTextModeValue
}

// width is a column's, in pixels: all of them fit into 1280.
func width(pixels int) dashboard.DynamicConfigValue {
	return dashboard.DynamicConfigValue{Id: "custom.width", Value: pixels}
}

// countCell colours a count from 1 on: none of a bad thing is no praise, since
// all may be unknown.
func countCell(color string) []dashboard.DynamicConfigValue {
	return []dashboard.DynamicConfigValue{{Id: "thresholds", Value: dashboard.ThresholdsConfig{
		Mode:  dashboard.ThresholdsModeAbsolute,
		Steps: []dashboard.Threshold{{Color: unknown}, {Value: cog.ToPtr(1.0), Color: color}},
	}}}
}

// buckets is a heatmap of a histogram's buckets over time.
func buckets(p panel) (dashboard.Panel, error) {
	built, err := heatmap.NewPanelBuilder().
		Color(heatmap.NewHeatmapColorOptionsBuilder().
			Mode(heatmap.HeatmapColorModeScheme).Scheme("Turbo").Scale(heatmap.HeatmapColorScaleExponential).
			Exponent(0.5).Steps(64).Fill("dark-orange")).
		YAxis(heatmap.NewYAxisConfigBuilder().
			Unit(p.unit).AxisPlacement(common.AxisPlacementLeft)).
		CellValues(heatmap.NewCellValuesBuilder().Unit("reqps")).
		RowsFrame(heatmap.NewRowsHeatmapOptionsBuilder().Layout(common.HeatmapCellLayoutAuto)).
		Tooltip(heatmap.NewHeatmapTooltipBuilder().
			Mode(common.TooltipDisplayModeSingle).YHistogram(true).ShowColorScale(true)).
		ShowValue(common.VisibilityModeNever).
		ShowLegend().
		ExemplarsColor("rgba(255,0,255,0.7)").
		ScaleDistribution(common.NewScaleDistributionConfigBuilder().Type(common.ScaleDistributionLinear)).
		Build()
	built.Targets = p.targets(prometheus.PromQueryFormatHeatmap, false)
	return built, err
}

// column says how a table shows what one query returned, or one label.
type column struct {
	name       string
	properties []dashboard.DynamicConfigValue
}

// rowsOf is a table of one row for each label set and one column for each query.
func rowsOf(transformations []dashboard.DataTransformerConfig, columns []column) func(panel) (dashboard.Panel, error) {
	return func(p panel) (dashboard.Panel, error) {
		b := table.NewPanelBuilder().
			ShowHeader(true).
			CellHeight(common.TableCellHeightSm).
			Align(common.FieldTextAlignmentAuto).
			CellOptions(common.TableCellOptions{TableAutoCellOptions: &common.TableAutoCellOptions{Type: common.TableCellDisplayModeAuto}}).
			Transformations(transformations)
		for _, c := range columns {
			b.OverrideByName(c.name, c.properties)
		}
		built, err := b.Build()
		if err != nil {
			return built, err
		}
		// Its default is an invisible footer with a null reducer.
		built.Options.(*table.Options).Footer = nil
		built.Targets = p.targets(prometheus.PromQueryFormatTable, true)
		return built, nil
	}
}

// chosen is a selector of one value, which starts at the first.
func chosen(name, label, query string) dashboard.VariableModel {
	v := variable(name, label, "", query)
	v.Multi, v.IncludeAll, v.AllValue, v.Current = cog.ToPtr(false), cog.ToPtr(false), nil, nil
	return v
}

// hidden is a variable that nobody selects: All of what its query returns, read
// again whenever the dashboard is refreshed. Regex takes the value from a series.
func hidden(name, query, regex string) dashboard.VariableModel {
	v := variable(name, name, "", query)
	v.AllValue, v.Regex = nil, &regex
	v.Sort = cog.ToPtr(dashboard.VariableSortDisabled)
	v.Hide = cog.ToPtr(dashboard.VariableHideHideVariable)
	v.SkipUrlSync = cog.ToPtr(true)
	return v
}

// variable is a multi-value selector that starts at All.
func variable(name, label, all, query string) dashboard.VariableModel {
	return dashboard.VariableModel{
		Type: dashboard.VariableTypeQuery, Name: name, Label: &label, Datasource: &datasource,
		Query: &dashboard.StringOrMap{String: &query},
		Multi: cog.ToPtr(true), IncludeAll: cog.ToPtr(true), AllValue: &all,
		Refresh: cog.ToPtr(dashboard.VariableRefreshOnTimeRangeChanged),
		Sort:    cog.ToPtr(dashboard.VariableSortAlphabeticalAsc),
		Current: &dashboard.VariableOption{
			Text:  dashboard.StringOrArrayOfString{ArrayOfString: []string{"All"}},
			Value: dashboard.StringOrArrayOfString{ArrayOfString: []string{"$__all"}},
		},
		Options: []dashboard.VariableOption{},
	}
}

// event is an annotation query: a vertical line wherever the expression returns
// a sample, or, with atValue, at the time that is its value in milliseconds.
func event(name, color, expr, title, text, tags string, shown, atValue bool) dashboard.AnnotationQuery {
	return dashboard.AnnotationQuery{
		Name: name, Datasource: &datasource, Enable: shown, IconColor: color,
		Target: prometheus.Dataquery{
			RefId: cog.ToPtr("Anno"), Datasource: &datasource, Expr: expr,
			Interval: cog.ToPtr("60s"), EditorMode: cog.ToPtr(prometheus.QueryEditorModeCode), Range: cog.ToPtr(true),
		},
		TitleFormat: &title, TextFormat: &text, TagKeys: &tags, UseValueForTime: &atValue,
	}
}
