package inbox

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgtype"
)

// Equal statements of many events are one statement for the server: the rows
//
//	INSERT INTO t (a, b) VALUES ($1, $2)     for each event
//
// become
//
//	INSERT INTO t (a, b) SELECT f.p1, f.p2 FROM unnest($1::text[], $2::bigint[]) AS f(p1, p2)
//
// in the order in which they were queued. That is done only where it leaves the
// same tables behind, which the shape of the statement and the server's catalog
// must show; what stays open (does an expression collide, does a row fail) ends
// in an error, after which the events' own statements are sent.

// leastFold is how many rows are worth a fold: after the database has refused
// an event, one, because folds stay prepared.
const leastFold = 4

// mostShapes bounds what a connection remembers: a handler may write its values
// into its statements.
const mostShapes = 200

const (
	name  = `(?:[a-zA-Z_][a-zA-Z0-9_$]*|"[^"]+")`
	value = `(?:\$\d+|-?\d+(?:\.\d+)?|'[^']*'|(?i:null|true|false|now\(\)))`
)

// insertForm is INSERT of one row of parameters and constants: table, alias,
// columns, values, what follows.
var insertForm = regexp.MustCompile(`^\s*(?i:INSERT\s+INTO)\s+(` + name + `(?:\.` + name + `)?)(\s+(?i:AS)\s+` + name + `)?\s*\(\s*(` + name + `(?:\s*,\s*` + name + `)*)\s*\)\s*(?i:VALUES)\s*\(\s*(` + value + `(?:\s*,\s*` + value + `)*)\s*\)\s*(.*?)[\s;]*$`)

// conflictForm is what may follow: keys of DO UPDATE and what it sets. Only
// columns, constants, operators and now(): no other function and no SELECT,
// which could look at other rows.
var conflictForm = regexp.MustCompile(`^(?i:ON\s+CONFLICT)(?:\s*\(\s*(` + name + `(?:\s*,\s*` + name + `)*)\s*\))?\s*(?i:DO)\s+(?:(?i:NOTHING)|(?i:UPDATE\s+SET)\s+((?:[\w\s.,=+*/<>"-]|(?i:now\(\)))+))$`)

var forbiddenWord = regexp.MustCompile(`(?i)\b(SELECT|RETURNING)\b|--|/\*`)

// shape of a statement that may be folded.
type shape struct {
	table   string
	head    string // up to the columns
	columns []string
	values  []string
	params  []int // of each column: the number of its parameter, 0 where it is a constant
	tail    string
	update  bool  // ON CONFLICT … DO UPDATE
	keys    []int // the parameters, from 0, that tell one row from another for DO UPDATE
}

// parseShape returns nil for a statement that cannot be folded.
func parseShape(sql string) *shape {
	m := insertForm.FindStringSubmatch(strings.ReplaceAll(sql, "\n", " "))
	if m == nil {
		return nil
	}
	s := &shape{table: m[1], head: "INSERT INTO " + m[1] + m[2] + " (" + m[3] + ")", columns: list(m[3]), values: list(m[4]), tail: m[5]}
	if len(s.columns) != len(s.values) {
		return nil
	}
	seen := 0
	s.params = make([]int, len(s.values))
	for i, v := range s.values {
		if strings.HasPrefix(v, "$") {
			seen++
			s.params[i], _ = strconv.Atoi(v[1:])
		}
	}
	for p := 1; p <= seen; p++ { // each once, none left out
		if !slices.Contains(s.params, p) {
			return nil
		}
	}
	if seen == 0 || s.tail == "" {
		return only(s, seen > 0)
	}
	c := conflictForm.FindStringSubmatch(s.tail)
	if c == nil || forbiddenWord.MatchString(s.tail) {
		return nil
	}
	if s.update = c[2] != ""; !s.update {
		return s
	}
	for _, key := range list(c[1]) {
		at := slices.IndexFunc(s.columns, func(c string) bool { return plainName(c) == plainName(key) })
		if at < 0 {
			return nil
		}
		if p := s.params[at]; p > 0 {
			s.keys = append(s.keys, p-1)
		}
	}
	return only(s, len(s.keys) > 0 && len(s.keys) <= len(rowKey{}))
}

func only(s *shape, ok bool) *shape {
	if !ok {
		return nil
	}
	return s
}

func list(s string) []string {
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// plainName is an identifier as the catalog has it.
func plainName(s string) string {
	if strings.HasPrefix(s, `"`) {
		return strings.Trim(s, `"`)
	}
	return strings.ToLower(s)
}

// fold is a shape with what the catalog says.
type fold struct {
	*shape
	oid     uint32
	related []uint32 // tables of its foreign keys, in both directions
	types   []string // of each parameter, from 0
	oids    []uint32
	arrays  []bool // whether the driver knows arrays of the type
	sql     map[string]string
}

// catalogSQL asks for a table by its name. It is one whose rows are written
// without regard to other rows: no triggers, rules or policies, and nothing of
// it calls a function of the users'.
const catalogSQL = `SELECT c.oid, c.relkind = 'r' AND NOT c.relhasrules AND NOT c.relrowsecurity
  AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = 'pg_proc'::regclass AND (d.classid, d.objid) IN (
    SELECT 'pg_attrdef'::regclass::oid, a.oid FROM pg_attrdef a WHERE a.adrelid = c.oid UNION ALL
    SELECT 'pg_constraint'::regclass::oid, n.oid FROM pg_constraint n WHERE n.conrelid = c.oid UNION ALL
    SELECT 'pg_class'::regclass::oid, i.indexrelid FROM pg_index i WHERE i.indrelid = c.oid)),
  ARRAY(SELECT CASE n.conrelid WHEN c.oid THEN n.confrelid ELSE n.conrelid END FROM pg_constraint n WHERE n.contype = 'f' AND c.oid IN (n.conrelid, n.confrelid)),
  ARRAY(SELECT coalesce(a.atttypid, 0) FROM unnest($2::text[]) WITH ORDINALITY AS w(name, i) LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = w.name AND a.attnum > 0 ORDER BY w.i),
  ARRAY(SELECT coalesce(format_type(a.atttypid, -1), '') FROM unnest($2::text[]) WITH ORDINALITY AS w(name, i) LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = w.name AND a.attnum > 0 ORDER BY w.i)
FROM pg_class c WHERE c.oid = to_regclass($1)`

// learnFold asks the catalog about a shape; nil where it cannot be folded.
func (s *session) learnFold(ctx context.Context, sh *shape) (*fold, error) {
	f := &fold{shape: sh, sql: map[string]string{}}
	columns := make([]string, len(sh.columns))
	for i, c := range sh.columns {
		columns[i] = plainName(c)
	}
	rows, err := s.conn.Query(ctx, catalogSQL, sh.table, columns)
	if err != nil {
		return nil, fmt.Errorf("look at table %s: %w", sh.table, err)
	}
	defer rows.Close()
	found, plain := false, false
	var oids []uint32
	var types []string
	for rows.Next() {
		found = true
		if err := rows.Scan(&f.oid, &plain, &f.related, &oids, &types); err != nil {
			return nil, fmt.Errorf("look at table %s: %w", sh.table, err)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("look at table %s: %w", sh.table, err)
	}
	if !found || !plain || slices.Contains(oids, 0) || slices.Contains(f.related, f.oid) {
		return nil, nil
	}
	n := slices.Max(sh.params)
	f.types, f.oids, f.arrays = make([]string, n), make([]uint32, n), make([]bool, n)
	m := s.conn.TypeMap()
	for i, p := range sh.params {
		if p == 0 {
			continue
		}
		f.types[p-1], f.oids[p-1] = types[i], oids[i]
		if t, ok := m.TypeForOID(oids[i]); ok {
			_, f.arrays[p-1] = m.TypeForName("_" + t.Name)
		}
	}
	return f, nil
}

// accepts says whether a row can be part of the fold, and as what: text marks
// the parameters that are given as strings, which the server reads as it reads
// them from the statement itself.
func (f *fold) accepts(m *pgtype.Map, args []any) (text string, ok bool) {
	if len(args) != len(f.types) {
		return "", false
	}
	form := make([]byte, len(args))
	for p, arg := range args {
		form[p] = '-'
		switch arg.(type) {
		case string, *string:
			form[p] = 't'
		case nil:
			if !f.arrays[p] {
				form[p] = 't'
			}
		default:
			if !f.arrays[p] || m.PlanEncode(f.oids[p], m.FormatCodeForOID(f.oids[p]), arg) == nil {
				return "", false
			}
		}
	}
	for _, k := range f.keys {
		if args[k] == nil || !reflect.TypeOf(args[k]).Comparable() {
			return "", false
		}
	}
	return string(form), true
}

// statement is the folded form.
func (f *fold) statement(form string) string {
	if sql, ok := f.sql[form]; ok {
		return sql
	}
	values := slices.Clone(f.values)
	arrays, names := make([]string, len(f.types)), make([]string, len(f.types))
	for p, t := range f.types {
		names[p] = fmt.Sprintf("p%d", p+1)
		if form[p] == 't' {
			t = "text"
		}
		arrays[p] = fmt.Sprintf("$%d::%s[]", p+1, t)
	}
	for i, p := range f.params {
		if p > 0 {
			values[i] = fmt.Sprintf("f.p%d", p)
			if form[p-1] == 't' {
				values[i] += "::" + f.types[p-1]
			}
		}
	}
	sql := f.head + " SELECT " + strings.Join(values, ", ") + " FROM unnest(" + strings.Join(arrays, ", ") + ") AS f(" + strings.Join(names, ", ") + ")"
	sql += " " + f.tail
	f.sql[form] = sql
	return sql
}

// unit is what is sent as one statement: one statement, or a fold of many.
type unit struct {
	rows []statement
	fold *fold
	form string
}

func (u unit) sql() string {
	if u.fold == nil {
		return u.rows[0].sql
	}
	return u.fold.statement(u.form)
}

func (u unit) args() []any {
	if u.fold == nil {
		return u.rows[0].args
	}
	args := make([]any, len(u.fold.types))
	for p := range args {
		column := make(pgtype.FlatArray[any], len(u.rows))
		for i, row := range u.rows {
			column[i] = row.args[p]
		}
		args[p] = column
	}
	return args
}

// owner of the unit: one event, or setBased.
func (u unit) owner() int {
	for _, row := range u.rows[1:] {
		if row.owner != u.rows[0].owner {
			return setBased
		}
	}
	return u.rows[0].owner
}

// rowKey tells rows of DO UPDATE apart.
type rowKey [3]any

func (f *fold) key(args []any) (key rowKey) {
	for i, k := range f.keys {
		key[i] = args[k]
	}
	return key
}

// group is a fold that still grows. DO UPDATE may not meet one row twice within
// a statement: the second time goes to the next wave, the third to the one
// after it.
type group struct {
	fold  *fold
	form  string
	waves [][]statement
	times map[rowKey]int
}

func (g *group) add(st statement) {
	wave := 0
	if g.fold.update {
		key := g.fold.key(st.args)
		wave = g.times[key]
		g.times[key]++
	}
	if wave == len(g.waves) {
		g.waves = append(g.waves, nil)
	}
	g.waves[wave] = append(g.waves[wave], st)
}

func (g *group) units(units []unit, least int) []unit {
	for _, rows := range g.waves {
		if len(rows) >= least {
			units = append(units, unit{rows, g.fold, g.form})
			continue
		}
		for i := range rows {
			units = append(units, unit{rows: rows[i : i+1]})
		}
	}
	return units
}

// fold statements. The order of two statements is kept wherever it could
// matter: before and after what cannot be folded, and between different
// statements on one table or on tables that a foreign key relates.
func (s *session) fold(ctx context.Context, pending []statement) ([]unit, error) {
	units := make([]unit, 0, len(pending))
	var open []*group
	closeAll := func() {
		for _, g := range open {
			units = g.units(units, s.leastFold)
		}
		open = open[:0]
	}
	for i, st := range pending {
		f, err := s.foldOf(ctx, st, len(pending))
		if err != nil {
			return nil, err
		}
		var form string
		ok := f != nil
		if ok {
			form, ok = f.accepts(s.conn.TypeMap(), st.args)
		}
		if !ok {
			closeAll()
			units = append(units, unit{rows: pending[i : i+1]})
			continue
		}
		at := slices.IndexFunc(open, func(g *group) bool { return g.fold == f && g.form == form })
		if at < 0 {
			if slices.ContainsFunc(open, func(g *group) bool { return g.fold.oid == f.oid || slices.Contains(f.related, g.fold.oid) }) {
				closeAll()
			}
			if err := s.prepare(ctx, f.statement(form)); err != nil {
				s.unfolded.add([]unit{{rows: pending[i : i+1], fold: f}})
				return nil, fmt.Errorf("fold %q: %w", st.sql, err)
			}
			open = append(open, &group{fold: f, form: form, times: map[rowKey]int{}})
			at = len(open) - 1
		}
		open[at].add(st)
	}
	closeAll()
	return units, nil
}

// foldsKey under which a connection keeps what it knows of statements.
const foldsKey = "oncewatch/inbox/folds"

// foldOf a statement; nil where it goes by itself.
func (s *session) foldOf(ctx context.Context, st statement, among int) (*fold, error) {
	if among < s.leastFold || s.unfolded == nil || s.oneByOne || s.plain[st.owner] || s.unfolded.has(st.sql) {
		return nil, nil
	}
	custom := s.conn.PgConn().CustomData()
	known, ok := custom[foldsKey].(map[string]*fold)
	if !ok {
		known = map[string]*fold{}
		custom[foldsKey] = known
	}
	f, ok := known[st.sql]
	if ok || len(known) >= mostShapes {
		return f, nil
	}
	if sh := parseShape(st.sql); sh != nil {
		var err error
		if f, err = s.learnFold(ctx, sh); err != nil {
			return nil, err
		}
	}
	known[st.sql] = f
	return f, nil
}

// unfolded are the statements that turned out not to be foldable.
type unfolded struct {
	mu  sync.Mutex
	sql map[string]bool
}

func (u *unfolded) has(sql string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.sql[sql]
}

func (u *unfolded) add(units []unit) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, un := range units {
		if un.fold != nil {
			u.sql[un.rows[0].sql] = true
		}
	}
}

// suspect is the event of a fold of which an error's text seems to speak: the
// one most of whose values it names. A guess, for the event is then tried by
// itself.
func (u unit) suspect(text string) (owner int, ok bool) {
	named := map[string]bool{}
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(`()," =`, r) }) {
		named[word] = true
	}
	most, rivals := 0, 0
	for _, row := range u.rows {
		n := 0
		for _, arg := range row.args {
			if named[fmt.Sprint(arg)] {
				n++
			}
		}
		switch {
		case n > most:
			most, rivals, owner = n, 1, row.owner
		case n == most && row.owner != owner:
			rivals++
		}
	}
	return owner, most > 0 && rivals == 1
}
