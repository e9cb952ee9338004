//go:build unix

package state

import (
	"errors"
	"os"
	"syscall"
)

// take locks a file until it is closed or the process ends, however it does.
func take(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrInUse
	}
	return err
}
