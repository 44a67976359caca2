// Command lwepp is the endpoint picker that the conformance suite deploys, with
// the flags and the controllers of the original and another ext_proc server. The
// server of v1.6.0 answers bodies in a way that full-duplex mode does not have.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/common"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/lwepp/datastore"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/lwepp/server"
)

func main() {
	logging := zap.Options{}
	logging.BindFlags(flag.CommandLine)
	options := server.NewOptions()
	options.AddFlags(pflag.CommandLine)
	pflag.CommandLine.AddGoFlagSet(flag.CommandLine)
	pflag.Parse()
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&logging)))
	if err := run(ctrl.SetupSignalHandler(), options); err != nil {
		fmt.Fprintln(os.Stderr, "lwepp:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, options *server.Options) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	runner := &server.ExtProcServerRunner{
		GrpcHealthPort: options.GRPCHealthPort,
		GKNN: common.GKNN{
			NamespacedName: types.NamespacedName{Namespace: options.PoolNamespace, Name: options.PoolName},
			GroupKind:      schema.GroupKind{Group: options.PoolGroup, Kind: "InferencePool"},
		},
		Datastore: datastore.NewDatastore(ctx),
	}
	bind := metrics.Options{BindAddress: fmt.Sprintf(":%d", options.MetricsPort)}
	mgr, err := server.NewDefaultManager(server.NewControllerConfig(true), runner.GKNN, config, bind)
	if err != nil {
		return err
	}
	if err := runner.SetupWithManager(mgr); err != nil {
		return err
	}
	if err := mgr.Add(runner.HealthServerRunnable(ctrl.Log)); err != nil {
		return err
	}
	processor := manager.RunnableFunc(func(ctx context.Context) error {
		return serve(ctx, options.GRPCPort, &picker{runner.Datastore})
	})
	if err := mgr.Add(processor); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// serve serves ext_proc over TLS until ctx is done.
func serve(ctx context.Context, port int, p *picker) error {
	config, err := selfSigned()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	extproc.RegisterExternalProcessorServer(server, p)
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve(listener)
}
