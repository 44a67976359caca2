// Command testcluster runs a small, real Kubernetes cluster without containers:
// the control plane in one process and pods as plain processes in namespaces.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
)

const usage = `usage:
  testcluster run  [FLAGS] -- CMD ARGS...    start a cluster, run CMD in it, tear it down
  testcluster up   [FLAGS]                   start a cluster, keep it until SIGTERM
  testcluster exec --state DIR -- CMD...     run CMD in a running cluster
  testcluster kubectl ARGS...                kubectl, using $KUBECONFIG
  testcluster fakepods FLAGS                 connect to a controller of Portcullis as its pods do, see fakepods --help

flags of run and up:
  --state DIR          directory for logs and kubeconfigs (run: default a temporary one)
                       DIR/kubeconfig-outside, for the host, is written when the cluster is ready
  --image NAME=PATH[,ARG...]
                       executable and default arguments of an image, by repository name; repeatable
  --crds CHANNEL       Gateway API CRDs to install: standard (default), experimental or none
  --lb-pool PREFIX     addresses for Services of type LoadBalancer (default 172.30.0.0/24)
  --audit-log FILE     audit log of the API server, a line of JSON per request, without content
`

// settings are passed from the outer process to the one inside the namespaces.
type settings struct {
	State    string
	Images   images
	CRDs     string
	Pool     netip.Prefix
	AuditLog string   // empty: none
	Command  []string // empty: run until SIGTERM
}

const settingsEnv = "TESTCLUSTER_SETTINGS"

// Files of the state directory, for clients in the cluster's network and on the host.
const kubeconfigInside, kubeconfigOutside = "kubeconfig", "kubeconfig-outside"

func main() {
	if filepath.Base(os.Args[0]) == "kubectl" {
		kubectl(os.Args[1:])
		return
	}
	if len(os.Args) < 2 {
		fail(errors.New("no command given\n" + usage))
	}
	code, err := 0, error(nil)
	switch args := os.Args[2:]; os.Args[1] {
	case "run", "up":
		code, err = outer(os.Args[1], args)
	case "exec":
		err = execInCluster(args)
	case "kubectl":
		kubectl(args)
	case "fakepods":
		err = runFakePods(args)
	case "inside":
		code, err = inside()
	case "help", "--help", "-h":
		fmt.Print(usage)
	default:
		err = fmt.Errorf("unknown command %q\n%s", os.Args[1], usage)
	}
	if err != nil {
		fail(err)
	}
	os.Exit(code)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "testcluster:", err)
	os.Exit(125)
}

func kubectl(args []string) {
	os.Args = append([]string{"kubectl"}, args...)
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}

// helper returns the path of a program in the folder of this one.
func helper(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("a part of testcluster is missing: %w", err)
	}
	return path, nil
}

// outer creates the state directory and the namespaces, waits for the cluster
// inside them to end, and removes its files. The kernel removes everything else
// (processes, mounts, interfaces, rules) with the namespaces.
func outer(mode string, args []string) (int, error) {
	s, err := parseSettings(mode, args)
	if err != nil {
		return 0, err
	}
	if os.Geteuid() != 0 {
		return 0, errors.New("only root can create the namespaces: run this with sudo")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return 0, fmt.Errorf("kube-proxy needs nft, of the Debian package nftables: %w", err)
	}
	if s.State == "" {
		if s.State, err = os.MkdirTemp("", "testcluster-"); err != nil {
			return 0, err
		}
		defer os.RemoveAll(s.State)
	}
	if s.State, err = filepath.Abs(s.State); err != nil {
		return 0, err
	}
	if pid, err := runningPID(s.State); err == nil {
		return 0, fmt.Errorf("a cluster already runs in %s (process %s)", s.State, pid)
	}
	for _, dir := range []string{"logs", "run"} {
		if err := os.MkdirAll(filepath.Join(s.State, dir), 0o755); err != nil {
			return 0, err
		}
	}
	defer func() {
		for _, name := range []string{"pid", kubeconfigInside, kubeconfigOutside, "run"} {
			os.RemoveAll(filepath.Join(s.State, name))
		}
	}()
	return runChild(s)
}

func parseSettings(mode string, args []string) (settings, error) {
	s := settings{Images: images{}}
	fs := flag.NewFlagSet(mode, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&s.State, "state", "", "")
	fs.Var(s.Images, "image", "")
	fs.StringVar(&s.CRDs, "crds", "standard", "")
	pool := fs.String("lb-pool", "172.30.0.0/24", "")
	fs.StringVar(&s.AuditLog, "audit-log", "", "")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Print(usage)
		os.Exit(0)
	} else if err != nil {
		return s, fmt.Errorf("%w\n%s", err, usage)
	}
	var err error
	if s.Pool, err = netip.ParsePrefix(*pool); err != nil || !s.Pool.Addr().Is4() {
		return s, fmt.Errorf("--lb-pool: %q is not an IPv4 prefix", *pool)
	}
	if _, err := crdFiles(s.CRDs); err != nil {
		return s, err
	}
	if s.AuditLog != "" {
		if s.AuditLog, err = filepath.Abs(s.AuditLog); err != nil {
			return s, err
		}
	}
	s.Command = fs.Args()
	switch {
	case mode == "run" && len(s.Command) == 0:
		return s, errors.New("run: no command given")
	case mode == "up" && (s.State == "" || len(s.Command) > 0):
		return s, errors.New("up: takes --state DIR and no command")
	}
	return s, s.Images.addBuiltins()
}

// runChild runs the cluster's main process in new namespaces, with a listener of
// the current namespace, and returns its exit code.
func runChild(s settings) (int, error) {
	listener, err := listenOutside()
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	encoded, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	podinit, err := helper("podinit")
	if err != nil {
		return 0, err
	}
	runtime.LockOSThread() // Pdeathsig is bound to the thread that starts the child
	child := exec.Command(podinit, "init", self, "inside")
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.ExtraFiles = []*os.File{listener}
	child.Env = append(os.Environ(), settingsEnv+"="+string(encoded))
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	if err := child.Start(); err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(s.State, "pid"), fmt.Appendln(nil, child.Process.Pid), 0o644); err != nil {
		return 0, err
	}
	go func() {
		for sig := range signals {
			child.Process.Signal(sig)
		}
	}()
	err = child.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

func runningPID(state string) (string, error) {
	data, err := os.ReadFile(filepath.Join(state, "pid"))
	if err != nil {
		return "", err
	}
	pid := strings.TrimSpace(string(data))
	comm, err := os.ReadFile("/proc/" + pid + "/comm")
	if err == nil && strings.TrimSpace(string(comm)) != "podinit" {
		err = errors.New("stale pid file")
	}
	return pid, err
}

// commandEnv returns the environment of commands that run in the cluster. kubectl
// and the conformance suite are in the folder of this program.
func commandEnv(state string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	path := filepath.Dir(self) + ":" + os.Getenv("PATH")
	os.Setenv("PATH", path) // which exec.Command searches
	env := []string{}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, settingsEnv+"=") && !strings.HasPrefix(kv, "PATH=") {
			env = append(env, kv)
		}
	}
	return append(env, "KUBECONFIG="+filepath.Join(state, kubeconfigInside), "PATH="+path), nil
}

func execInCluster(args []string) error {
	fs := flag.NewFlagSet("exec", flag.ContinueOnError)
	state := fs.String("state", "", "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *state == "" || fs.NArg() == 0 {
		return errors.New("exec: takes --state DIR -- CMD ARGS...")
	}
	dir, err := filepath.Abs(*state)
	if err != nil {
		return err
	}
	pid, err := runningPID(dir)
	if err != nil {
		return fmt.Errorf("no cluster runs in %s: %w", dir, err)
	}
	podinit, err := helper("podinit")
	if err != nil {
		return err
	}
	env, err := commandEnv(dir)
	if err != nil {
		return err
	}
	return syscall.Exec(podinit, append([]string{podinit, "exec", pid, "-", "--"}, fs.Args()...), env)
}
