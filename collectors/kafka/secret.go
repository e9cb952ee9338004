package kafka

// Secret is a value that is never printed: not by fmt, not in JSON or YAML, not
// in a log.
type Secret string

const redacted = "<secret>"

// String implements fmt.Stringer without telling the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString implements fmt.GoStringer without telling the secret.
func (s Secret) GoString() string { return s.String() }

// MarshalText implements encoding.TextMarshaler without telling the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Reveal is the secret itself.
func (s Secret) Reveal() string { return string(s) }
