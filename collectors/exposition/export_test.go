package exposition

import "time"

// AtOnce lets a scrape wait for its page however long encoding takes, so that
// a test on a busy machine knows which poll it is served.
func (h *Handler) AtOnce() *Handler {
	h.soon = time.Hour
	return h
}
