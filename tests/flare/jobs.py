"""A FLARE job whose updates are known: every client adds 0.02 to 20,000 weights in each round."""

from __future__ import annotations

from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import InTimeAccumulateWeightedAggregator
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.app_common.np.np_trainer import NPTrainer
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import FullModelShareableGenerator
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType

import cepam
from cepam.flare import ClientFilter, ServerFilter
from tests.deployment import flat


def known_job(
    rounds: int, sigma: float = 0.01, bound: float = 3.0, site: dict[str, str] | None = None, filtered: bool = True,
    **options,
) -> FedJob:  # fmt: skip
    """The job, with the filters of this package: an update has norm 2.83.

    `site` has the client filter's arguments, `options` the server filter's. With `filtered` off the job brings no
    filter for its clients.
    """
    job = FedJob(name="cepam", min_clients=2)
    job.to_server(NPModelPersistor(model=[[0.0] * 200] * 100), id="persistor")
    job.to_server(InTimeAccumulateWeightedAggregator(expected_data_kind="WEIGHTS"), id="aggregator")
    job.to_server(FullModelShareableGenerator(), id="generator")
    workflow = ScatterAndGather(
        min_clients=2, num_rounds=rounds, aggregator_id="aggregator", persistor_id="persistor",
        shareable_generator_id="generator", train_task_name="train", ignore_result_error=True if site else None,
    )  # fmt: skip
    job.to_server(workflow, id="workflow")
    for kind in (FilterType.TASK_DATA, FilterType.TASK_RESULT):
        server = ServerFilter(clip=cepam.L2(bound), noise=cepam.Gaussian(sigma), **flat(**options))
        job.to_server(server, filter_type=kind, tasks=["train"])
        if filtered:
            job.to_clients(ClientFilter(**(site or {})), filter_type=kind, tasks=["train"])
    job.to_clients(NPTrainer(delta=0.02), tasks=["train"])
    return job
