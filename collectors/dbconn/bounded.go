package dbconn

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/jackc/pgx/v5/pgproto3"
)

// maxSettings is how many bytes of settings a server may report on one
// connection: PostgreSQL has about fifteen, and a driver keeps them all.
const maxSettings = 64 << 10

var errSettings = errors.New("the server reports settings without end: it is no PostgreSQL")

// Bounded makes a connection's frontend that allocates at most so many bytes
// for a message, and refuses a server that reports settings without end: it
// may do so before anybody has asked it anything.
func Bounded(maxMessage int) func(io.Reader, io.Writer) *pgproto3.Frontend {
	return func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		f := pgproto3.NewFrontend(&settingsReader{r: r}, w)
		f.SetMaxBodyLen(maxMessage)
		return f
	}
}

// settingsReader counts the bytes of ParameterStatus messages that pass by. A
// message is a byte for its type, four for its length, and its body.
type settingsReader struct {
	r        io.Reader
	header   [5]byte
	have     int // bytes of the header
	body     int // bytes of the body still to come
	settings int
}

// Read implements io.Reader.
func (s *settingsReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		if s.body > 0 {
			skip := min(s.body, len(rest))
			s.body, rest = s.body-skip, rest[skip:]
			continue
		}
		copied := copy(s.header[s.have:], rest)
		s.have, rest = s.have+copied, rest[copied:]
		if s.have < len(s.header) {
			break
		}
		s.have = 0
		length := binary.BigEndian.Uint32(s.header[1:])
		s.body = max(0, int(length)-4) // one that is too long is refused by the frontend
		if s.header[0] == 'S' {
			if s.settings += s.body + 1; s.settings > maxSettings {
				return 0, errSettings
			}
		}
	}
	return n, err
}
