package kafkaserver

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// process is a broker that ends with this program.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed once it has ended
}

func launch(program string, args []string, dir string) (*process, error) {
	p := &process{cmd: exec.Command(program, args...), log: filepath.Join(dir, "log"), done: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	p.cmd.SysProcAttr = endWithParent()
	started := make(chan error, 1)
	go func() {
		// The kernel ties the child to the thread that made it: keep that one.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// end signals the process and waits for it; when the context ends first, it is
// killed.
func (p *process) end(ctx context.Context, sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		_ = p.cmd.Process.Kill()
		<-p.done
		return ctx.Err()
	}
}
