package config

import (
	"fmt"
	"os"
	"strings"
)

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

// ReadSecret reads a secret from a file; the line's end is not part of it. flag
// is the flag that names the file, for errors.
func ReadSecret(flag, path string) (Secret, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if strings.TrimSpace(secret) == "" {
		return "", fmt.Errorf("%s: %s is empty", flag, path)
	}
	return Secret(secret), nil
}
