//go:build !linux

package testenv

import "os/exec"

// endWithParent: only Linux can tie a child to its parent's life.
func endWithParent(*exec.Cmd) {}
