// external-dns, with its flags, sources, plan and registries, and of its providers only `inmemory`, which logs the changes of
// records. The others need clients of many clouds.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	log "github.com/sirupsen/logrus"
	"sigs.k8s.io/external-dns/endpoint"
	"sigs.k8s.io/external-dns/pkg/apis/externaldns"
	"sigs.k8s.io/external-dns/pkg/apis/externaldns/validation"
	"sigs.k8s.io/external-dns/plan"
	"sigs.k8s.io/external-dns/provider/inmemory"
	"sigs.k8s.io/external-dns/registry"
	"sigs.k8s.io/external-dns/registry/txt"
	"sigs.k8s.io/external-dns/source"
	"sigs.k8s.io/external-dns/source/annotations"
	"sigs.k8s.io/external-dns/source/wrappers"
)

func main() {
	config := externaldns.NewConfig()
	check(config.ParseFlags(os.Args[1:]))
	check(validation.ValidateConfig(config))
	level, err := log.ParseLevel(config.LogLevel)
	check(err)
	log.SetLevel(level)
	annotations.SetAnnotationPrefix(config.AnnotationPrefix)

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	sources, err := source.NewSourceConfig(config)
	check(err)
	endpoints, err := wrappers.Build(ctx, sources)
	check(err)
	filter := endpoint.NewDomainFilterWithOptions(endpoint.WithDomainFilter(config.DomainFilter))
	provider, err := inmemory.New(ctx, config, filter)
	check(err)
	records, err := txt.New(config, provider)
	check(err)

	changed := make(chan struct{}, 1)
	if config.UpdateEvents {
		endpoints.AddEventHandler(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}
	for {
		check(reconcile(ctx, config, endpoints, records, filter))
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(config.Interval):
		}
	}
}

// What the controller of external-dns does in each turn.
func reconcile(ctx context.Context, config *externaldns.Config, from source.Source, records registry.Registry, filter *endpoint.DomainFilter) error {
	current, err := records.Records(ctx)
	if err != nil {
		return err
	}
	wanted, err := from.Endpoints(ctx)
	if err != nil {
		return err
	}
	if wanted, err = records.AdjustEndpoints(wanted); err != nil {
		return err
	}
	turn := &plan.Plan{
		Policies:       []plan.Policy{plan.Policies[config.Policy]},
		Current:        current,
		Desired:        wanted,
		DomainFilter:   endpoint.MatchAllDomainFilters{filter, records.GetDomainFilter()},
		ManagedRecords: config.ManagedDNSRecordTypes,
		ExcludeRecords: config.ExcludeDNSRecordTypes,
		OwnerID:        records.OwnerID(),
	}
	changes := turn.Calculate().Changes
	if !changes.HasChanges() {
		return nil
	}
	return records.ApplyChanges(ctx, changes)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
