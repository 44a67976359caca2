package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// inside is the cluster's main process. It runs in the new namespaces, starts
// every component and then the user's command, and returns its exit code.
func inside() (int, error) {
	var s settings
	if err := json.Unmarshal([]byte(os.Getenv(settingsEnv)), &s); err != nil {
		return 0, errors.New("this command is for testcluster itself")
	}
	os.Unsetenv(settingsEnv)
	if err := logTo(filepath.Join(s.State, "logs", "cluster.log")); err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)

	failed := make(chan error, 8)
	ready := make(chan error, 1)
	started := time.Now()
	go func() { ready <- startCluster(s, failed) }()
	select {
	case err := <-ready:
		if err != nil {
			return 0, fmt.Errorf("starting the cluster: %w (see %s/logs)", err, s.State)
		}
	case err := <-failed:
		return 0, fmt.Errorf("%w (see %s/logs)", err, s.State)
	case sig := <-signals:
		return 128 + int(sig.(syscall.Signal)), nil
	}
	fmt.Fprintf(os.Stderr, "testcluster: ready after %.1f s\n", time.Since(started).Seconds())

	if len(s.Command) == 0 {
		select {
		case err := <-failed:
			return 0, err
		case <-signals:
			return 0, nil
		}
	}
	env, err := commandEnv(s.State)
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(s.Command[0], s.Command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, os.Stdout, os.Stderr, env
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case err := <-done:
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
					return 128 + int(ws.Signal()), nil
				}
				return exit.ExitCode(), nil
			}
			return 0, err
		case err := <-failed:
			return 0, fmt.Errorf("%w (see %s/logs)", err, s.State)
		case sig := <-signals:
			cmd.Process.Signal(sig)
			time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		}
	}
}

// logTo redirects the components' log and descriptor 2, to which libraries
// write, to a file. os.Stderr stays the original one, and also shows crashes.
func logTo(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	saved, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return err
	}
	os.Stderr = os.NewFile(uintptr(saved), "stderr")
	if err := unix.Dup3(int(file.Fd()), 2, 0); err != nil {
		return err
	}
	if err := debug.SetCrashOutput(os.Stderr, debug.CrashOptions{}); err != nil {
		return err
	}
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(flags)
	klog.SetOutput(file)
	return flags.Parse([]string{"-logtostderr=false", "-stderrthreshold=FATAL", "-one_output"})
}

// startCluster returns when the cluster is ready. A component that ends later
// reports on failed.
func startCluster(s settings, failed chan<- error) error {
	ctx := context.Background()
	component := func(name string, run func() error) {
		go func() { failed <- fmt.Errorf("%s failed: %w", name, run()) }()
	}
	// All state of the cluster except the logs is in memory, in a mount that ends with the namespace.
	run := filepath.Join(s.State, "run")
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mounting %s: %w", run, err)
	}
	if err := setupNodeNetwork(s.Pool); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	p, err := newPKI(filepath.Join(run, "pki"))
	if err != nil {
		return err
	}
	if err := p.issue("apiserver", "kube-apiserver", nil, []string{nodeIP, serviceIP, "127.0.0.1", "localhost",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}); err != nil {
		return err
	}
	if err := p.issue("admin", "admin", []string{"system:masters"}, nil); err != nil {
		return err
	}
	if _, err := p.newKey("serviceaccount"); err != nil {
		return err
	}
	kubeconfig := filepath.Join(s.State, kubeconfigInside)
	if err := p.kubeconfig("admin", "https://"+apiAddress, kubeconfig); err != nil {
		return err
	}

	if err := startEtcd(filepath.Join(run, "etcd"), filepath.Join(s.State, "logs", "etcd.log")); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	component("kube-apiserver", func() error { return runAPIServer(ctx, p, s.AuditLog) })

	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 500, 1000
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for kube-apiserver: %w", err)
	}

	component("kube-controller-manager", func() error { return runControllerManager(ctx, p, kubeconfig) })
	component("kube-scheduler", func() error { return runScheduler(ctx, kubeconfig) })
	factory := informers.NewSharedInformerFactory(client, 0)
	startLoadBalancer(ctx, client, factory, s.Pool)
	if err := startKubelet(ctx, client, factory, s); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	component("kube-proxy", func() error { return runProxy(ctx, kubeconfig) })
	component("CoreDNS", func() error { return runDNS(kubeconfig) })
	if err := installCRDs(ctx, config, s.CRDs); err != nil {
		return err
	}
	if err := waitReady(ctx, client); err != nil {
		return err
	}
	if err := createDNSService(ctx, client); err != nil {
		return fmt.Errorf("cluster DNS: %w", err)
	}
	if err := serveOutside(p, filepath.Join(s.State, kubeconfigOutside)); err != nil {
		return fmt.Errorf("access to the API server from outside: %w", err)
	}
	return nil
}
