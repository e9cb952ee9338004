package replay_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/collectors/replay"
)

// Event ids are found where --event-id says, by RFC 6901 within a JSON value;
// what is no string and no number is no id.
func TestEventID(t *testing.T) {
	t.Parallel()
	record := &kgo.Record{
		Key: []byte("k-1"),
		Headers: []kgo.RecordHeader{{Key: "id", Value: []byte("first")}, {Key: "id", Value: []byte("last")}, {Key: "empty"},
			{Key: "a:b", Value: []byte("colon")}},
		Value: []byte(` { "id" : "e-1", "ID": "other", "n": 18446744073709551616, "minus": -7, "exact": 1.50, "nothing": null, "yes": true, "none": "",
			"": "unnamed", "a/b": {"m~n": "escaped", "~1": "tilde"}, "list": ["zero", {"id": "one"}, [2]], "u": "\u00e9\"", "object": {} }`),
	}
	for where, want := range map[string]string{
		"header:id": "last", "header:empty": "", "header:absent": "", "header:a:b": "colon",
		"key":      "k-1",
		"json:/id": "e-1", "json:/ID": "other", "json:/Id": "", "json:/n": "18446744073709551616", "json:/minus": "-7", "json:/exact": "1.50",
		"json:/nothing": "", "json:/yes": "", "json:/none": "", "json:/absent": "", "json:/object": "", "json:/list": "",
		"json:/": "unnamed", "json:/a~1b/m~0n": "escaped", "json:/a~1b/~01": "tilde", "json:/u": "é\"",
		"json:/list/0": "zero", "json:/list/1/id": "one", "json:/list/2/0": "2",
		"json:/list/3": "", "json:/list/-": "", "json:/list/-1": "", "json:/list/+1/id": "", "json:/list/01/id": "", "json:/id/0": "", "json:/n/0": "",
	} {
		id, err := replay.ParseEventID(where)
		if err != nil {
			t.Errorf("%s: %v", where, err)
			continue
		}
		if got, ok := id(record); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v; want %q", where, got, ok, want)
		}
	}
	of, err := replay.ParseEventID("json:/id")
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"", "{", `{"id": "cut`, `["id"]`, "null", "\xff", `{"id": 1e`, "e-1"} {
		if got, ok := of(&kgo.Record{Value: []byte(value)}); ok {
			t.Errorf("%q: %q is no id", value, got)
		}
	}
	for _, where := range []string{"", "header", "header:", "key:", "keys", "json", "json:", "json:id", "JSON:/id", "value:/id"} {
		if _, err := replay.ParseEventID(where); err == nil {
			t.Errorf("%q is taken for a place", where)
		}
	}
}
