"""What of a DeepSpeed config is refused, by its right name and with its line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jobs.imports.jobs import JOB, a_job, autos, ds_text, outcomes, said
from zerotools.core.errors import Unsupported

A_JOB = a_job(JOB + "batch_size = 16\nmicro_batch_size = 4\nlearning_rate = 1e-4\n")


class TestNotSupported:
    @pytest.mark.parametrize(
        ("config", "told"),
        [
            (
                {"optimizer": {"type": "Lamb", "params": {"lr": "auto", "betas": "auto"}}},
                'only DeepSpeed\'s Adam, AdamW, SGD and Muon; engine = "deepspeed" supports it',
            ),
            (
                {"scheduler": {"type": "OneCycle", "params": {"warmup_min_lr": "auto"}}},
                "is not supported; supported: WarmupLR",
            ),
            ({"sparse_attention": {"mode": "fixed"}}, "sparse_attention = a table"),
            ({"data_efficiency": {"enabled": True}}, "changes the training"),
            ({"gradient_allreduce_op": "sum"}, "gradient_allreduce_op"),
            ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "nvme"),
        ],
    )
    def test_it_is_refused_with_its_place(self, config: dict[str, Any], told: str) -> None:
        imported = ds_text(json.dumps(config), A_JOB)
        assert isinstance(imported.problem, Unsupported)
        assert "ds.json:1 " in said(imported)
        assert told in said(imported)

    def test_features_that_are_off_do_no_harm(self) -> None:
        config = {"data_efficiency": {"enabled": False}, "amp": {}, "sparse_gradients": False}
        assert ds_text(json.dumps(config), A_JOB).problem is None

    @pytest.mark.parametrize("engine", ["torch", "deepspeed"])
    def test_what_the_trainer_resolves_is_resolved_whatever_the_type(self, engine: str) -> None:
        job = a_job(f'engine = "{engine}"\n' + JOB + "batch_size = 16\nlearning_rate = 1e-4\n")
        amp = {"amp": {"enabled": "auto", "opt_level": "auto"}}
        assert ds_text(json.dumps(amp), job).problem is None
        left_out = engine == "deepspeed"  # which does not start with it
        resolved = {} if left_out else {"amp": {"enabled": False}}
        assert autos(ds_text(json.dumps(amp), job)) == resolved
        lamb = {"optimizer": {"type": "Lamb", "params": {"lr": "auto"}}}
        assert autos(ds_text(json.dumps(lamb), job)) == {"optimizer.params.lr": 1e-4}

    @pytest.mark.parametrize(
        "config",
        [
            {"hybrid_engine": {"enabled": True}, "steps_per_print": 1},
            {"optimizer": {"type": "Lamb", "params": {"lr": 1e-3, "coeff_beta": 0.9}}},
            {"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4}}},
            {
                "zero_optimization": {
                    "stage": 3,
                    "offload_param": {"device": "nvme", "nvme_path": "/n"},
                }
            },
        ],
    )
    def test_the_engine_deepspeed_is_passed_what_torch_cannot(self, config: dict[str, Any]) -> None:
        job = a_job('engine = "deepspeed"\n' + JOB + "batch_size = 8\n")
        imported = ds_text(json.dumps(config), job)
        assert {"passed through"} <= set(outcomes(imported).values())
        told = [*imported.findings.unsupported, *imported.findings.wrong]
        assert told == []
        assert imported.deepspeed is not None
        assert imported.deepspeed.items() >= config.items()

    def test_parameters_of_another_optimizer_are_no_typos(self) -> None:
        config = {"optimizer": {"type": "Lamb", "params": {"coeff_beta": 0.9}}}
        imported = ds_text(json.dumps(config), A_JOB)
        assert outcomes(imported)["optimizer.params.coeff_beta"] == "unknown"
        assert said(imported) == (
            'ds.json:1 optimizer.type = "Lamb": the engine torch supports only DeepSpeed\'s '
            'Adam, AdamW, SGD and Muon; engine = "deepspeed" supports it'
        )


class TestRightRefusals:
    """What was refused with a hint that misled is mapped, listed, or refused by its own name."""

    ENGINE = a_job('engine = "deepspeed"\n' + JOB + "batch_size = 8\n")

    @pytest.mark.parametrize("engine", ["torch", "deepspeed"])
    @pytest.mark.parametrize(
        ("config", "key"),
        [
            ({"bf16": {"enabled": True, "loss_scale": 0, "hysteresis": 2}}, "bf16.loss_scale"),
            (
                {"zero_optimization": {"stage": 2, "sub_group_size": 1e9}},
                "zero_optimization.sub_group_size",
            ),
            ({"steps_per_print": "auto"}, "steps_per_print"),
        ],
    )
    def test_what_does_nothing_is_listed(
        self, config: dict[str, Any], key: str, engine: str
    ) -> None:
        imported = ds_text(
            json.dumps({**config, "train_batch_size": 8}), a_job(f'engine = "{engine}"\n' + JOB)
        )
        assert imported.problem is None
        assert outcomes(imported)[key] == "ignored"

    def test_deepspeed_is_not_given_a_loss_scale_of_bf16(self) -> None:
        config = {"bf16": {"enabled": True, "loss_scale": 0}, "steps_per_print": "auto"}
        found = ds_text(json.dumps(config), self.ENGINE).deepspeed
        assert found is not None
        assert found["bf16"] == {"enabled": True}
        assert "steps_per_print" not in found

    def test_adam_with_a_coupled_decay_is_adam(self) -> None:
        params = {"adam_w_mode": False, "weight_decay": 0.1}
        config = json.dumps({"optimizer": {"type": "Adam", "params": params}})
        imported = ds_text(config, a_job(JOB + "batch_size = 8\n"))
        assert imported.problem is None
        assert imported.tree["train"].items() >= {"optimizer": "adam", "weight_decay": 0.1}.items()
        passed = ds_text(config, self.ENGINE)
        assert passed.problem is None
        assert passed.deepspeed is not None
        assert passed.deepspeed["optimizer"]["params"].items() >= params.items()

    @pytest.mark.parametrize(
        ("params", "wanted"),
        [
            (
                {"lr": 1e-3, "muon_lr": 0.02, "momentum": 0.9, "weight_decay": 0.1},
                {
                    "learning_rate": 1e-3,
                    "muon_learning_rate": 0.02,
                    "muon_momentum": 0.9,
                    "weight_decay": 0.1,
                },
            ),
            (
                {"lr": 0.02, "adam_lr": 1e-3, "betas": [0.8, 0.9], "ns_method": "gram"},
                {"learning_rate": 1e-3, "muon_learning_rate": 0.02, "betas": (0.8, 0.9)},
            ),
            (
                {},
                {
                    "learning_rate": 3e-4,
                    "muon_learning_rate": 0.02,
                    "betas": (0.9, 0.95),
                    "eps": 1e-10,
                    "weight_decay": 0.0,
                },
            ),
        ],
    )
    def test_muon_has_two_learning_rates(
        self, params: dict[str, Any], wanted: dict[str, Any]
    ) -> None:
        config = json.dumps({"optimizer": {"type": "Muon", "params": params}})
        imported = ds_text(config, a_job(JOB + "batch_size = 8\n"))
        assert imported.problem is None
        assert imported.spec is not None
        train = imported.spec.train
        assert (train.optimizer, train.muon_scale) == ("muon", "original")
        assert {name: getattr(train, name) for name in wanted} == wanted
        passed = ds_text(config, self.ENGINE)
        assert passed.problem is None
        assert passed.deepspeed is not None
        assert passed.deepspeed["optimizer"]["type"] == "Muon"

    def test_muon_beside_a_scheduler_has_its_learning_rate(self) -> None:
        scheduler = {
            "type": "WarmupLR",
            "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 2, "warmup_type": "linear"},
        }
        config = {"optimizer": {"type": "Muon", "params": {"lr": 1e-3}}, "scheduler": scheduler}
        job = a_job(JOB + "batch_size = 8\n")
        train = ds_text(json.dumps(config), job).tree["train"]
        assert train["learning_rate"] == 1e-3
        assert "muon_learning_rate" not in train
        config["optimizer"]["params"]["muon_lr"] = 0.02  # type: ignore[index]
        assert "the rate of all weights; remove it" in said(ds_text(json.dumps(config), job))

    @pytest.mark.parametrize("key", ["per_head_muon", "adam_w_mode"])
    def test_muon_in_other_forms_is_refused(self, key: str) -> None:
        params = {"lr": 1e-3, key: key == "per_head_muon"}
        config = {"optimizer": {"type": "Muon", "params": params}}
        imported = ds_text(json.dumps(config), a_job(JOB + "batch_size = 8\n"))
        assert f"optimizer.params.{key} = " in said(imported)

    def test_clipping_in_the_optimizer_says_where_it_belongs(self) -> None:
        config = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "max_grad_norm": 0.3}}}
        for job in (self.ENGINE, a_job(JOB + "batch_size = 8\n")):
            assert (
                "ds.json:1 optimizer.params.max_grad_norm = 0.3: DeepSpeed rejects it in this "
                "section; write "
                "gradient_clipping = 0.3 at the top of ds.json"
            ) in said(ds_text(json.dumps(config), job))

    def test_zenflow_has_an_auto_of_its_own(self) -> None:
        zenflow = {"select_strategy": "auto", "update_interval": "auto"}
        config = {"zero_optimization": {"stage": 2, "zenflow": zenflow}}
        imported = ds_text(json.dumps(config), self.ENGINE)
        assert imported.problem is None
        assert imported.deepspeed is not None
        assert imported.deepspeed["zero_optimization"]["zenflow"] == zenflow

    def test_a_part_of_the_optimizer_is_offloaded_at_stage_3_alone(self) -> None:
        offload = {"device": "cpu", "ratio": 0.3}
        config = {"zero_optimization": {"stage": 2, "offload_optimizer": offload}}
        assert "offloads a part of the optimizer only at stage 3" in said(
            ds_text(json.dumps(config), self.ENGINE)
        )
        config["zero_optimization"]["stage"] = 3
        assert ds_text(json.dumps(config), self.ENGINE).problem is None
        rows = ds_text(json.dumps(config), a_job(JOB + "batch_size = 8\n")).findings.rows
        why = {row.key: row.why for row in rows}["zero_optimization.offload_optimizer.ratio"]
        assert why == "the engine torch always offloads the whole optimizer"

    @pytest.mark.parametrize(
        ("section", "compiles"),
        [
            ({"deepcompile": True}, True),
            ({"enabled": True, "backend": "inductor"}, True),
            ({"disable": False, "backend": "inductor"}, True),
            ({"disable": True, "backend": "eager"}, False),
            ({"deepcompile": False}, False),
        ],
    )
    def test_compile_sections(self, section: dict[str, Any], compiles: bool) -> None:
        imported = ds_text(json.dumps({"compile": section}), a_job(JOB + "batch_size = 8\n"))
        assert imported.problem is None
        assert imported.tree["train"].get("compile", False) is compiles

    def test_a_backend_that_the_engine_does_not_have(self) -> None:
        config = {"compile": {"enabled": True, "backend": "tvm"}}
        imported = ds_text(json.dumps(config), a_job(JOB + "batch_size = 8\n"))
        assert "compile.backend" in said(imported)

    def test_deepcompile_is_not_passed_over(self) -> None:
        config = {"compile": {"deepcompile": True}, "zero_optimization": {"stage": 3}}
        assert "compile.deepcompile = true: needs a call of engine.compile()" in said(
            ds_text(json.dumps(config), self.ENGINE)
        )
