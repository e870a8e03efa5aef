// Dapr's sidecar injector, from its own module, configured by the environment variables of its chart.
//
//	dapr -kubeconfig FILE -port PORT -cert FILE -key FILE -anchors FILE
//
// The certificate and the trust anchors, which the sidecars get, are given. Its own command gets them from Sentry.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"log"
	"os"

	dapr "github.com/dapr/dapr/pkg/client/clientset/versioned"
	"github.com/dapr/dapr/pkg/healthz"
	"github.com/dapr/dapr/pkg/injector/service"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "")
	port := flag.Int("port", 0, "")
	certificate := flag.String("cert", "", "")
	key := flag.String("key", "", "")
	anchors := flag.String("anchors", "", "")
	flag.Parse()
	log.Fatal(run(*kubeconfig, *port, *certificate, *key, *anchors))
}

func run(kubeconfig string, port int, certificate, key, anchors string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	settings, err := service.GetConfig()
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	sentry, err := spiffeid.FromString("spiffe://cluster.local/ns/dapr-system/dapr-sentry")
	if err != nil {
		return err
	}
	injector, err := service.NewInjector(service.Options{
		Port:                    port,
		ListenAddress:           "127.0.0.1",
		Config:                  settings,
		DaprClient:              dapr.NewForConfigOrDie(config),
		KubeClient:              kubernetes.NewForConfigOrDie(config),
		ControlPlaneNamespace:   settings.Namespace,
		ControlPlaneTrustDomain: settings.ControlPlaneTrustDomain,
		Healthz:                 healthz.New(),
	})
	if err != nil {
		return err
	}
	readAnchors := func(context.Context) ([]byte, error) { return os.ReadFile(anchors) }
	return injector.Run(context.Background(), &tls.Config{Certificates: []tls.Certificate{pair}}, sentry, readAnchors)
}
