package kafkaserver

import "syscall"

// endWithParent also covers a test that panics or is killed. A process group
// of its own: Ctrl-C in the terminal is for the program that started it.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
