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

// owner is the user the server runs as. PostgreSQL refuses to run as root.
type owner struct {
	uid, gid uint32
	other    bool
}

// serverOwner is the current user, or, for root, the postgres user or nobody.
func serverOwner() (owner, error) {
	if os.Geteuid() != 0 {
		return owner{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return owner{uid: uint32(uid), gid: uint32(gid), other: true}, nil
		}
	}
	return owner{}, fmt.Errorf("PostgreSQL refuses to run as root, and there is no user named postgres or nobody to run it as: start as another user")
}

func (o owner) give(path string) error {
	if !o.other {
		return nil
	}
	return os.Chown(path, int(o.uid), int(o.gid))
}

func (o owner) runAs(cmd *exec.Cmd) {
	// A session of its own: Ctrl-C in the terminal is for the program that
	// started the server, which then stops it in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if o.other {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: o.uid, Gid: o.gid}
	}
}
