package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// crdFiles returns the CRDs of the Gateway API release in go.mod. The build
// copies them to the folder of this program, because files of another module
// cannot be embedded.
func crdFiles(channel string) ([]string, error) {
	switch channel {
	case "none":
		return nil, nil
	case "standard", "experimental":
		dir, err := helper(filepath.Join("crds", channel))
		if err != nil {
			return nil, err
		}
		return filepath.Glob(filepath.Join(dir, "*.yaml"))
	}
	return nil, fmt.Errorf("--crds: unknown channel %q", channel)
}

// installCRDs creates every object of the channel's files and waits until the
// API server serves the new types.
func installCRDs(ctx context.Context, config *rest.Config, channel string) error {
	files, err := crdFiles(channel)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	var names []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 1<<16)
		for {
			obj := &unstructured.Unstructured{}
			if err := decoder.Decode(obj); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if len(obj.Object) == 0 {
				continue
			}
			resource, _ := meta.UnsafeGuessKindToResource(obj.GroupVersionKind())
			if _, err := client.Resource(resource).Create(ctx, obj, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if resource.Resource == "customresourcedefinitions" {
				names = append(names, obj.GetName())
			}
		}
	}
	for _, name := range names {
		err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			crd, err := crds.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
			for _, c := range conditions {
				if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
					return true, nil
				}
			}
			return false, nil
		})
		if err != nil {
			return fmt.Errorf("CRD %s: %w", name, err)
		}
	}
	return nil
}
