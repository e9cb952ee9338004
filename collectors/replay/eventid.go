package replay

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// EventID takes the event id from a record; ok is false where it has none.
type EventID func(*kgo.Record) (id string, ok bool)

// ParseEventID reads where records carry their event id: header:NAME (the last
// of that name), key, or json:/pointer into the value (RFC 6901; a string or a
// number).
func ParseEventID(text string) (EventID, error) {
	where, rest, _ := strings.Cut(text, ":")
	switch {
	case where == "header" && rest != "":
		return func(r *kgo.Record) (string, bool) {
			for i := len(r.Headers) - 1; i >= 0; i-- {
				if r.Headers[i].Key == rest {
					return string(r.Headers[i].Value), len(r.Headers[i].Value) > 0
				}
			}
			return "", false
		}, nil
	case text == "key":
		return func(r *kgo.Record) (string, bool) { return string(r.Key), len(r.Key) > 0 }, nil
	case where == "json" && strings.HasPrefix(rest, "/"):
		unescape := strings.NewReplacer("~1", "/", "~0", "~")
		var path []string
		for _, step := range strings.Split(rest[1:], "/") {
			path = append(path, unescape.Replace(step))
		}
		return func(r *kgo.Record) (string, bool) { return pointed(r.Value, path) }, nil
	}
	return nil, bad("event-id", "%q says nothing of where records carry their event id: want header:NAME, key or json:/path/in/value", text)
}

// pointed is the string or number at a path in a JSON text.
func pointed(value json.RawMessage, path []string) (string, bool) {
	for _, step := range path {
		switch first(value) {
		case '{':
			var object map[string]json.RawMessage
			if json.Unmarshal(value, &object) != nil {
				return "", false
			}
			value = object[step]
		case '[':
			var list []json.RawMessage
			i, err := strconv.Atoi(step)
			if err != nil || strconv.Itoa(i) != step || json.Unmarshal(value, &list) != nil || i < 0 || i >= len(list) {
				return "", false
			}
			value = list[i]
		default:
			return "", false
		}
	}
	var text string
	switch c := first(value); {
	case c == '"':
		if json.Unmarshal(value, &text) != nil {
			return "", false
		}
	case c == '-' || c >= '0' && c <= '9':
		var number json.Number
		if json.Unmarshal(value, &number) != nil {
			return "", false
		}
		text = number.String()
	}
	return text, text != ""
}

// first is the first byte of a JSON text; 0 where there is none.
func first(value json.RawMessage) byte {
	for _, c := range value {
		if c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c
		}
	}
	return 0
}
