// Istio's control plane and its charts, from its own module.
//
//	istio discovery ...                   istiod
//	istio manifest --set KEY=VALUE ...    what `istioctl manifest generate` prints: the rendered charts
package main

import (
	"fmt"
	"os"
	"strings"

	"istio.io/istio/operator/pkg/render"
	"istio.io/istio/pilot/cmd/pilot-discovery/app"
)

func main() {
	if os.Args[1] == "manifest" {
		if err := printManifests(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := app.NewRootCommand().Execute(); err != nil {
		os.Exit(1)
	}
}

func printManifests(settings []string) error {
	sets, _, err := render.GenerateManifest(nil, settings, false, nil, nil)
	if err != nil {
		return err
	}
	for _, set := range sets {
		for _, manifest := range set.Manifests {
			fmt.Println("---\n" + strings.TrimSpace(manifest.Content))
		}
	}
	return nil
}
