package testenv

import (
	"os/exec"
	"syscall"
)

// endWithParent also covers a test that panics or is killed.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
