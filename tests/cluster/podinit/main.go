// Command podinit is the small, fast-starting half of testcluster that runs
// inside namespaces:
//
//	podinit init CMD ARGS...            first process of a cluster's PID namespace; passes on descriptor 3
//	podinit container SPEC              sets up one container, then becomes its process
//	podinit exec PID SPEC|- -- CMD...   runs CMD in the namespaces of process PID
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"testcluster/podinit/spec"
)

// Namespaces and capabilities belong to threads, so everything stays on this one.
func init() { runtime.LockOSThread() }

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) > 1 && args[0] == "init":
		err = initMain(args[1:])
	case len(args) == 2 && args[0] == "container":
		// The parent reads the reason of a failed start from descriptor 4,
		// which is closed by a successful exec (close-on-exec).
		unix.CloseOnExec(4)
		if err = containerMain(args[1]); err != nil {
			fmt.Fprint(os.NewFile(4, "errors"), err)
			os.Exit(128)
		}
	case len(args) > 4 && args[0] == "exec" && args[3] == "--":
		err = execMain(args[1], args[2], args[4:])
	default:
		err = errors.New("usage: podinit init|container|exec ARGS...")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "podinit:", err)
		os.Exit(1)
	}
}

// initMain runs a command, forwards signals to it, reaps orphans, and exits with
// the command's exit code. The kernel then kills all remaining processes.
func initMain(args []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	child, err := os.StartProcess(args[0], args, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, os.NewFile(3, "listener")},
	})
	if err != nil {
		return err
	}
	go func() {
		for s := range signals {
			child.Signal(s)
		}
	}()
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case pid == child.Pid && ws.Signaled():
			os.Exit(128 + int(ws.Signal()))
		case pid == child.Pid:
			os.Exit(ws.ExitStatus())
		}
	}
}

func readSpec(path string) (s spec.Container, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	return s, err
}

// containerMain runs as PID 1 of the container, in its own mount, PID, UTS and
// IPC namespaces; descriptor 3 is the pod's network namespace unless the pod
// uses the node's.
func containerMain(path string) error {
	s, err := readSpec(path)
	if err != nil {
		return err
	}
	if s.PodNetwork {
		if err := unix.Setns(3, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("joining the pod's network: %w", err)
		}
	}
	unix.Close(3)
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return err
	}
	if err := setupRoot(s); err != nil {
		return err
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return err
	}
	if err := os.Chdir(s.Dir); err != nil {
		return err
	}
	os.Clearenv()
	for _, kv := range s.Env {
		k, v, _ := strings.Cut(kv, "=")
		os.Setenv(k, v)
	}
	file, err := exec.LookPath(s.Args[0])
	if err != nil {
		return err
	}
	if err := raiseFileLimit(); err != nil {
		return fmt.Errorf("raising the limit of open files: %w", err)
	}
	if err := dropPrivileges(s); err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", file, syscall.Exec(file, s.Args, s.Env))
}

// setupRoot creates the container's root: the host's root file system below a
// private writable layer, with fresh kernel file systems and the pod's volumes.
func setupRoot(s spec.Container) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	root := filepath.Join(s.Scratch, "root")
	opts := fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s", filepath.Join(s.Scratch, "upper"), filepath.Join(s.Scratch, "work"))
	if err := unix.Mount("overlay", root, "overlay", 0, opts); err != nil {
		return fmt.Errorf("mounting the root file system: %w", err)
	}
	if err := os.Mkdir(root+"/.host", 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, root+"/.host"); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	const plain = unix.MS_NOSUID | unix.MS_NODEV
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
		data                   string
	}{
		{"proc", "/proc", "proc", plain | unix.MS_NOEXEC, ""},
		{"/.host/sys", "/sys", "", unix.MS_BIND | unix.MS_REC, ""},
		{"/.host/dev", "/dev", "", unix.MS_BIND | unix.MS_REC, ""},
		{"tmpfs", "/dev/shm", "tmpfs", plain, "mode=1777"},
		{"tmpfs", "/tmp", "tmpfs", plain, "mode=1777"},
		{"tmpfs", "/run", "tmpfs", plain, "mode=755"},
	} {
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %s: %w", m.target, err)
		}
	}
	for _, m := range s.Mounts {
		if err := bind("/.host"+m.Source, m.Target, m.ReadOnly); err != nil {
			return fmt.Errorf("mounting %s: %w", m.Target, err)
		}
	}
	if err := unix.Unmount("/.host", unix.MNT_DETACH); err != nil {
		return err
	}
	if err := os.Remove("/.host"); err != nil {
		return err
	}
	if s.ReadOnlyRoot {
		return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	return nil
}

func bind(source, target string, readOnly bool) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
		var f *os.File
		if f, err = os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o644); err == nil {
			f.Close()
		}
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil || !readOnly {
		return err
	}
	return unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

// raiseFileLimit allows as many open files as container runtimes do, or as the host does if that is less.
func raiseFileLimit() error {
	const files = 1 << 20
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: files, Max: files}) == nil {
		return nil
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}

// dropPrivileges limits the capabilities and switches to the container's user.
func dropPrivileges(s spec.Container) error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if s.Capabilities&(1<<c) == 0 {
			unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		}
	}
	if s.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	if err := syscall.Setgroups(s.Groups); err != nil {
		return err
	}
	if err := syscall.Setgid(s.GID); err != nil {
		return err
	}
	return syscall.Setuid(s.UID)
}

// execMain runs a command in the namespaces of another process and exits with
// its exit code. With a container's spec it uses the container's environment and
// user, without one the caller's environment and working directory.
func execMain(pid, specPath string, args []string) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	dir, _ := os.Getwd()
	if specPath != "-" {
		s, err := readSpec(specPath)
		if err != nil {
			return err
		}
		dir, cmd.Env = s.Dir, s.Env
		groups := make([]uint32, len(s.Groups))
		for i, g := range s.Groups {
			groups[i] = uint32(g)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(s.UID), Gid: uint32(s.GID), Groups: groups}}
		for _, kv := range s.Env {
			if path, ok := strings.CutPrefix(kv, "PATH="); ok {
				os.Setenv("PATH", path)
			}
		}
	}
	kinds := []string{"net", "uts", "ipc", "pid", "mnt"}
	fds := make([]int, len(kinds))
	for i, kind := range kinds {
		fd, err := unix.Open("/proc/"+pid+"/ns/"+kind, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("process %s: %w", pid, err)
		}
		fds[i] = fd
	}
	// setns(2) refuses a mount namespace if threads share the file system context.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	for i, fd := range fds {
		if err := unix.Setns(fd, 0); err != nil {
			return fmt.Errorf("joining %s namespace: %w", kinds[i], err)
		}
	}
	if err := os.Chdir(dir); err != nil {
		return err
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	cmd.Path, cmd.Err = path, nil
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		for s := range signals {
			cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
			os.Exit(128 + int(ws.Signal()))
		}
		os.Exit(exit.ExitCode())
	}
	return err
}
