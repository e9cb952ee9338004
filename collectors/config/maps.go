package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// mapMapper reads a map of strings or durations: KEY=VALUE;KEY=VALUE of a flag,
// a mapping of the file. kong's own tells of neither what is wrong.
type mapMapper struct{}

var (
	stringsType       = reflect.TypeFor[map[string]string]()
	mapOfDurationType = reflect.TypeFor[map[string]time.Duration]()
)

func (mapMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	token := ctx.Scan.Pop()
	entries := map[string]string{}
	switch value := token.Value.(type) {
	case string:
		for _, one := range kong.SplitEscaped(value, ';') {
			k, v, ok := strings.Cut(one, "=")
			if !ok || k == "" {
				return fmt.Errorf("%q: want KEY=VALUE, several separated by semicolons", one)
			}
			entries[k] = v
		}
	case map[string]any:
		for k, v := range value {
			entries[k] = fmt.Sprint(v)
		}
	default:
		return fmt.Errorf("want KEY=VALUE, or a mapping in the file")
	}
	if target.IsNil() {
		target.Set(reflect.MakeMap(target.Type()))
	}
	for k, v := range entries {
		if target.Type() == stringsType {
			target.SetMapIndex(reflect.ValueOf(k), reflect.ValueOf(v))
			continue
		}
		d, err := ParseDuration(v)
		if err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
		target.SetMapIndex(reflect.ValueOf(k), reflect.ValueOf(d))
	}
	return nil
}
