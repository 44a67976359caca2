// Command epp is the endpoint picker of the Inference Extension 1.5. It takes the
// flags that the manifests of the suite have for lwepp, and has the plugins that the
// suite of its own version gives it.
package main

import (
	"fmt"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"

	"sigs.k8s.io/gateway-api-inference-extension/cmd/epp/runner"
)

const plugins = `
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: header-based-testing-filter
- type: destination-endpoint-served-verifier
schedulingProfiles:
- name: conformance-profile
  plugins:
  - pluginRef: header-based-testing-filter
`

func main() {
	os.Args = append(os.Args, "--config-text", plugins)
	if err := runner.NewRunner().Run(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "epp:", err)
		os.Exit(1)
	}
}
