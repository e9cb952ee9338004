package consumer

import "net"

// Resolve lets another resolver answer.
func (s *Source) Resolve(r *net.Resolver) { s.resolver = r }
