//go:build unix

package pgserver

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// Unprivileged is who runs what refuses to run as root, as PostgreSQL and
// pgbouncer do: the postgres user or nobody where we are root, else nil, which
// stands for ourselves.
func Unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, fmt.Errorf("PostgreSQL refuses to run as root, and there is no user named postgres or nobody to run it as: start as another user")
}

// owner is the user the server runs as.
type owner struct{ *syscall.Credential }

func serverOwner() (owner, error) {
	c, err := Unprivileged()
	return owner{c}, err
}

func (o owner) give(path string) error {
	if o.Credential == nil {
		return nil
	}
	return os.Chown(path, int(o.Uid), int(o.Gid))
}

func (o owner) runAs(cmd *exec.Cmd) {
	// A session of its own: Ctrl-C in the terminal is for the program that
	// started the server, which then stops it in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: o.Credential}
}
