package postgres

import (
	"testing"
)

// Every statement that is printed runs as printed on the table it is printed
// for.
func TestRemediesRunAsPrinted(t *testing.T) {
	t.Parallel()
	const columns = `(consumer_group text, event_id text, "at ""Time""" timestamptz NOT NULL DEFAULT now())`
	for name, c := range map[string]struct {
		ddl           string
		index, unique bool
	}{
		"plain":               {`CREATE TABLE "Odd Name" ` + columns, true, true},
		"partitioned by time": {`CREATE TABLE "Odd Name" ` + columns + ` PARTITION BY RANGE ("at ""Time"""); CREATE TABLE p PARTITION OF "Odd Name" DEFAULT`, true, false},
		"partitioned by id":   {`CREATE TABLE "Odd Name" ` + columns + ` PARTITION BY HASH (event_id); CREATE TABLE p PARTITION OF "Odd Name" FOR VALUES WITH (MODULUS 1, REMAINDER 0)`, true, true},
		"view":                {`CREATE TABLE beneath ` + columns + `; CREATE VIEW "Odd Name" AS SELECT * FROM beneath`, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, Config{Table: `"Odd Name"`, Columns: Columns{ProcessedAt: `at "Time"`}}, c.ddl)
			table := b.poll().Table
			for what, x := range map[string]struct {
				sql  string
				want bool
			}{
				"index":  {table.CreateIndex(`at "Time"`), c.index},
				"unique": {table.CreateUniqueIndex("consumer_group", "event_id"), c.unique},
			} {
				if (x.sql != "") != x.want {
					t.Errorf("%s: %q, want one: %t", what, x.sql, x.want)
				}
				if x.sql != "" {
					b.exec(x.sql)
				}
			}
			table = b.poll().Table
			if c.index && table.TimeIndex == "" || c.unique && !table.UniqueOn("consumer_group", "event_id") {
				t.Errorf("the indexes %+v are not what was wanted", table.Indexes)
			}
		})
	}
}
