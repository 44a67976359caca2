// Command promql checks queries with Prometheus' own parser: each must parse, and each of its selectors must select a series of
// a scrape. The input is lines of JSON {"where": …, "query": …}, the argument is a file with a scrape as OpenMetrics text.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql/parser"
)

type query struct {
	Where string `json:"where"`
	Query string `json:"query"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: promql SCRAPE < QUERIES")
		os.Exit(2)
	}
	series, err := read(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	count, failed := 0, 0
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var one query
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		count++
		if err := check(one.Query, series); err != nil {
			failed++
			fmt.Printf("%s: %s\n  %v\n", one.Where, one.Query, err)
		}
	}
	fmt.Printf("%d queries, %d wrong, on %d series\n", count, failed, len(series))
	if failed > 0 || count == 0 {
		os.Exit(1)
	}
}

// read returns the series of a scrape, with the labels that scrape configurations add.
func read(path string) ([]labels.Labels, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	symbols := labels.NewSymbolTable()
	page := textparse.NewOpenMetricsParser(text, symbols)
	var series []labels.Labels
	for {
		entry, err := page.Next()
		if errors.Is(err, io.EOF) {
			return series, nil
		}
		if err != nil {
			return nil, err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var found labels.Labels
		page.Labels(&found)
		builder := labels.NewBuilder(found)
		for _, name := range []string{"instance", "job", "gateway", "gateway_namespace"} {
			if found.Get(name) == "" {
				builder.Set(name, "any")
			}
		}
		series = append(series, builder.Labels())
	}
}

// check reports why a query cannot give a result on these series.
func check(text string, series []labels.Labels) error {
	// Grafana replaces its variables.
	for _, variable := range []string{"$__rate_interval", "$__range"} {
		text = strings.ReplaceAll(text, variable, (5 * time.Minute).String())
	}
	for _, variable := range []string{"$gateway_namespace", "$gateway", "$namespace", "$route"} {
		text = strings.ReplaceAll(text, variable, ".*")
	}
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		return err
	}
	var missing error
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		selector, is := node.(*parser.VectorSelector)
		if is && missing == nil && !selects(selector.LabelMatchers, series) {
			missing = fmt.Errorf("%s selects nothing", selector)
		}
		return nil
	})
	return missing
}

func selects(matchers []*labels.Matcher, series []labels.Labels) bool {
	for _, one := range series {
		fits := true
		for _, matcher := range matchers {
			fits = fits && matcher.Matches(one.Get(matcher.Name))
		}
		if fits {
			return true
		}
	}
	return false
}
