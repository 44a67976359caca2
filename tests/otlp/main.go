// Command otelcol is the OpenTelemetry collector with what the test of traces and logs needs of it: the receiver of OTLP, and an
// exporter that writes each message as a line of OTLP's JSON to standard output.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

func main() {
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otelcol", Version: "test"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				DefaultScheme:     "file",
				ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
			},
		},
	}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func factories() (otelcol.Factories, error) {
	receivers, err := otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	exporters, err := otelcol.MakeFactoryMap[exporter.Factory](linesFactory())
	return otelcol.Factories{
		Receivers: receivers,
		Exporters: exporters,
		Telemetry: otelconftelemetry.NewFactory(),
	}, err
}

// lines writes what it receives to standard output.
type lines struct {
	component.StartFunc
	component.ShutdownFunc
	mutex sync.Mutex
}

func linesFactory() exporter.Factory {
	stability := component.StabilityLevelStable
	return exporter.NewFactory(
		component.MustNewType("lines"),
		func() component.Config { return &struct{}{} },
		exporter.WithTraces(func(context.Context, exporter.Settings, component.Config) (exporter.Traces, error) {
			return &lines{}, nil
		}, stability),
		exporter.WithLogs(func(context.Context, exporter.Settings, component.Config) (exporter.Logs, error) {
			return &lines{}, nil
		}, stability),
	)
}

func (*lines) Capabilities() consumer.Capabilities {
	return consumer.Capabilities{MutatesData: false}
}

func (l *lines) ConsumeTraces(_ context.Context, traces ptrace.Traces) error {
	text, err := (&ptrace.JSONMarshaler{}).MarshalTraces(traces)
	if err != nil {
		return err
	}
	return l.write(text)
}

func (l *lines) ConsumeLogs(_ context.Context, logs plog.Logs) error {
	text, err := (&plog.JSONMarshaler{}).MarshalLogs(logs)
	if err != nil {
		return err
	}
	return l.write(text)
}

func (l *lines) write(text []byte) error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	_, err := os.Stdout.Write(append(text, '\n'))
	return err
}
