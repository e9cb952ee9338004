//go:build !linux

package kafkaserver

import "syscall"

// endWithParent: only Linux can tie a child to its parent's life.
func endWithParent() *syscall.SysProcAttr { return nil }
