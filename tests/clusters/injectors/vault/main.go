// The webhook of vault-k8s, from its own module, with the defaults of its command `agent-inject`.
//
//	vault -kubeconfig FILE -listen ADDRESS -cert FILE -key FILE [-image IMAGE] [-cpu-limit QUANTITY] [-address URL]
//
// The command itself runs only in a Pod: it wants the files of a service account.
package main

import (
	"flag"
	"log"
	"net/http"
	"strconv"

	agentinject "github.com/hashicorp/vault-k8s/agent-inject"
	"github.com/hashicorp/vault-k8s/agent-inject/agent"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hashicorp/go-hclog"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "")
	listen := flag.String("listen", "", "")
	certificate := flag.String("cert", "", "")
	key := flag.String("key", "", "")
	image := flag.String("image", agent.DefaultVaultImage, "")
	limit := flag.String("cpu-limit", agent.DefaultResourceLimitCPU, "")
	address := flag.String("address", "https://vault.vault.svc:8200", "")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	handler := agentinject.Handler{
		VaultAddress:       *address,
		VaultAuthType:      agent.DefaultVaultAuthType,
		VaultAuthPath:      agent.DefaultVaultAuthPath,
		ImageVault:         *image,
		Clientset:          kubernetes.NewForConfigOrDie(config),
		RequireAnnotation:  true,
		Log:                hclog.Default(),
		UserID:             strconv.Itoa(agent.DefaultAgentRunAsUser),
		GroupID:            strconv.Itoa(agent.DefaultAgentRunAsGroup),
		SameID:             agent.DefaultAgentRunAsSameUser,
		SetSecurityContext: agent.DefaultAgentSetSecurityContext,
		DefaultTemplate:    agent.DefaultTemplateType,
		ResourceRequestCPU: agent.DefaultResourceRequestCPU,
		ResourceRequestMem: agent.DefaultResourceRequestMem,
		ResourceLimitCPU:   *limit,
		ResourceLimitMem:   agent.DefaultResourceLimitMem,
		ExitOnRetryFailure: agent.DefaultTemplateConfigExitOnRetryFailure,
	}
	http.HandleFunc("/mutate", handler.Handle)
	log.Fatal(http.ListenAndServeTLS(*listen, *certificate, *key, nil))
}
